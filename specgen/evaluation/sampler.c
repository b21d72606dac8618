/* Where a process's CPU time goes: at every tick of its CPU clock, the address at which it was interrupted.
 * Loaded into the candidate's process for one untimed look; see sampler.py. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/time.h>
#include <ucontext.h>

#define MOST 4096

volatile int inside_operator; /* set while a library operator runs that was asked for through torch */
volatile int sampled;
uintptr_t places[MOST];
unsigned char inside[MOST];

static void note(int number, siginfo_t *info, void *context) {
  ucontext_t *at = context;
  int index = __atomic_fetch_add(&sampled, 1, __ATOMIC_RELAXED);
  (void)number;
  (void)info;
  if (index >= MOST) return;
#if defined(__x86_64__)
  places[index] = (uintptr_t)at->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  places[index] = (uintptr_t)at->uc_mcontext.pc;
#endif
  inside[index] = (unsigned char)(inside_operator != 0);
}

int sampling_start(int microseconds) {
  struct sigaction action = {0};
  struct itimerval every = {{0, microseconds}, {0, microseconds}};
  action.sa_sigaction = note;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sampled = 0;
  if (sigaction(SIGPROF, &action, 0)) return -1;
  return setitimer(ITIMER_PROF, &every, 0);
}

int sampling_stop(void) {
  struct itimerval none = {{0, 0}, {0, 0}};
  return setitimer(ITIMER_PROF, &none, 0);
}
