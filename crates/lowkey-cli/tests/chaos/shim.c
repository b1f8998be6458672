/* Faults that only a process's own C library can play without privileges: syncs that fail, a wall clock
 * that jumps, and a clock that runs too fast. Loaded into a node by LD_PRELOAD; a small file that the test
 * writes says what is to happen. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct control {
    volatile int64_t loaded_by;
    volatile int64_t syncs_fail;
    volatile int64_t wall_clock_offset_seconds;
    /* From this reading of the monotonic clock on it runs at this many thousandths of its rate. */
    volatile int64_t fast_since_nanos;
    volatile int64_t rate_permille;
};

static struct control none;
static struct control *control = &none;

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("LOWKEY_CHAOS_CONTROL");
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return;
    control = mapped;
    control->loaded_by = getpid();
}

int fdatasync(int file) {
    if (control->syncs_fail) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fdatasync, file);
}

int fsync(int file) {
    if (control->syncs_fail) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, file);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int outcome = real ? real(clock, time) : (int)syscall(SYS_clock_gettime, clock, time);
    if (outcome == 0 && clock == CLOCK_REALTIME)
        time->tv_sec += control->wall_clock_offset_seconds;
    if (outcome == 0 && clock == CLOCK_MONOTONIC && control->rate_permille) {
        const int64_t second = 1000000000, since = control->fast_since_nanos;
        int64_t nanos = (int64_t)time->tv_sec * second + time->tv_nsec;
        if (nanos > since) {
            nanos = since + (nanos - since) * control->rate_permille / 1000;
            time->tv_sec = nanos / second;
            time->tv_nsec = nanos % second;
        }
    }
    return outcome;
}
