#!/bin/sh
# Secrets by file: each FILE_OF_NAME=/run/secrets/… in the environment becomes NAME with the file's content, for this
# process alone (`docker inspect` shows the path). Then the service's own command, in this process's place. Not the usual
# NAME_FILE: SpecGen's settings refuse names that they do not know, also in health checks and `docker compose exec`.
set -eu
for name in $(env | sed -n 's/^FILE_OF_\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
  eval "file=\$FILE_OF_$name"
  [ -r "$file" ] || { echo "specgen: FILE_OF_$name names $file, which cannot be read" >&2; exit 2; }
  value=$(cat "$file")
  export "$name=$value"
  unset "FILE_OF_$name"
done
[ $# -gt 0 ] || { echo "specgen: no command given" >&2; exit 2; }
exec "$@"
