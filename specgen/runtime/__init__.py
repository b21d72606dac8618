"""The embedded system: everything that `docker-compose.yml` starts, as processes of one command on one machine."""
