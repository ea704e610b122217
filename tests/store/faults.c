/* Fails system calls on chosen files: for tests, with LD_PRELOAD.
 *
 * The file that the variable FAULTS names holds one line: "<call> <part of the path> <count> <errno>". Each matching
 * call counts the line down and fails, until the count is 0. `call` is pread, pwrite or fsync; fsync stands for
 * fdatasync, too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int is_faulty(const char *call, int descriptor) {
    const char *plan = getenv("FAULTS");
    char line[512] = "", wanted[32], part[256], link[64], path[512] = "";
    int count, number;
    FILE *file;
    if (!plan || !(file = fopen(plan, "r"))) return 0;
    char *got = fgets(line, sizeof line, file);
    fclose(file);
    if (!got || sscanf(line, "%31s %255s %d %d", wanted, part, &count, &number) != 4) return 0;
    if (count <= 0 || strcmp(wanted, call)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    if (readlink(link, path, sizeof path - 1) < 0 || !strstr(path, part)) return 0;
    if (!(file = fopen(plan, "w"))) return 0;
    fprintf(file, "%s %s %d %d\n", wanted, part, count - 1, number);
    fclose(file);
    errno = number;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
ssize_t pread(int d, void *b, size_t n, off_t o) { return is_faulty("pread", d) ? -1 : REAL(pread)(d, b, n, o); }
ssize_t pread64(int d, void *b, size_t n, off64_t o) { return is_faulty("pread", d) ? -1 : REAL(pread64)(d, b, n, o); }
ssize_t pwrite(int d, const void *b, size_t n, off_t o) { return is_faulty("pwrite", d) ? -1 : REAL(pwrite)(d, b, n, o); }
ssize_t pwrite64(int d, const void *b, size_t n, off64_t o) { return is_faulty("pwrite", d) ? -1 : REAL(pwrite64)(d, b, n, o); }
int fsync(int d) { return is_faulty("fsync", d) ? -1 : REAL(fsync)(d); }
int fdatasync(int d) { return is_faulty("fsync", d) ? -1 : REAL(fdatasync)(d); }
