#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void note(const char *call, const char *path, const char *to) {
    char line[8500];
    const char *name = getenv("DISK_CALLS");
    int file = name ? open(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file < 0) return;
    int size = snprintf(line, sizeof line, "%s\t%s\t%s\n", call, path, to);
    syscall(SYS_write, file, line, size);
    close(file);
}
static void note_file(const char *call, int file) {
    char place[64], path[4096] = {0};
    snprintf(place, sizeof place, "/proc/self/fd/%d", file);
    if (readlink(place, path, sizeof path - 1) > 0 && path[0] == '/') note(call, path, "");
}
ssize_t write(int file, const void *data, size_t size) {
    note_file("write", file);
    return syscall(SYS_write, file, data, size);
}
int fsync(int file) { note_file("sync", file); return syscall(SYS_fsync, file); }
int fdatasync(int file) { note_file("sync", file); return syscall(SYS_fdatasync, file); }
int syncfs(int file) { note("sync", "*", ""); return syscall(SYS_syncfs, file); }
void sync(void) { note("sync", "*", ""); syscall(SYS_sync); }
int link(const char *from, const char *to) {
    note("name", from, to);
    return syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int rename(const char *from, const char *to) {
    note("name", from, to);
    return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
