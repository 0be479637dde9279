#define _GNU_SOURCE
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "message.h"

#define OPEN_FOLDER (O_RDONLY | O_DIRECTORY | O_CLOEXEC)
#define OTHERS_MAY_WRITE (S_IWGRP | S_IWOTH)
#define VERSION_DIGITS "12" /* digits of the index hash in the folder's name */

static _Noreturn void fail_folder(const char *path, int error)
{
    fail(EXIT_STORAGE, storage_hint(error), "cannot use the folder %s: %s", path, strerror(error));
}

static struct stat stat_folder(int fd, const char *path)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        fail_folder(path, errno);
    return info;
}

/* Security check 1: nobody else may write to, or replace, what we execute from here. */
static void check_own_folder(int fd, const char *path)
{
    struct stat info = stat_folder(fd, path);
    if (info.st_uid != geteuid())
        fail(EXIT_STORAGE, "use that user, or set OPENCOTI_EXTRACT_DIR (with sudo: HOME is still yours, try sudo -H)",
             "refusing the folder %s: it belongs to user %u and you are user %u", path, (unsigned)info.st_uid,
             (unsigned)geteuid());
    if ((info.st_mode & OTHERS_MAY_WRITE) != 0)
        fail(EXIT_STORAGE, "remove that right (chmod go-w), after a look at what is in it",
             "refusing the folder %s: other users may write to it (mode %04o)", path,
             (unsigned)(info.st_mode & 07777));
}

/* Security check 2: the folder the user chose may be shared only in the way of /tmp. */
static void check_base_folder(int fd, const char *path)
{
    struct stat info = stat_folder(fd, path);
    bool is_trusted = info.st_uid == geteuid() || info.st_uid == 0;
    if (!is_trusted || ((info.st_mode & OTHERS_MAY_WRITE) != 0 && (info.st_mode & S_ISVTX) == 0))
        fail(EXIT_STORAGE, "set OPENCOTI_EXTRACT_DIR to a folder that only you can write to",
             "refusing the folder %s: other users may replace what is in it", path);
}

static _Noreturn void fail_child(int parent, const char *name, const char *path, int error)
{
    struct stat info;
    bool is_known = fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
    if (is_known && S_ISLNK(info.st_mode))
        fail(EXIT_STORAGE, "remove the link, or set OPENCOTI_EXTRACT_DIR to the folder that you want",
             "refusing the folder %s: it is a symbolic link", path);
    if (is_known && !S_ISDIR(info.st_mode))
        fail(EXIT_STORAGE, "move it away, or set OPENCOTI_EXTRACT_DIR to another folder",
             "cannot use the folder %s: it is not a folder", path);
    fail_folder(path, error);
}

/* Open `name` in `parent`, or make it with mode 0700; never through a link. Closes `parent`. */
static int open_child(int parent, const char *name, const char *path)
{
    int fd = openat(parent, name, OPEN_FOLDER | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) {
        if (mkdirat(parent, name, 0700) != 0 && errno != EEXIST)
            fail_folder(path, errno);
        fd = openat(parent, name, OPEN_FOLDER | O_NOFOLLOW);
    }
    if (fd < 0)
        fail_child(parent, name, path, errno);
    check_own_folder(fd, path);
    close(parent);
    return fd;
}

static struct folder enter(struct folder parent, const char *name)
{
    const char *path = format_text("%s/%s", parent.path, name);
    return (struct folder){open_child(parent.fd, name, path), path};
}

/* A folder that the user named: it may be reached through links; its last part is made if it is missing. */
static struct folder open_base(const char *path)
{
    int fd = open(path, OPEN_FOLDER);
    if (fd < 0 && errno == ENOENT) {
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            fail_folder(path, errno);
        fd = open(path, OPEN_FOLDER);
    }
    if (fd < 0)
        fail_folder(path, errno);
    check_base_folder(fd, path);
    return (struct folder){fd, path};
}

static struct folder open_home(const char *home)
{
    if (home == NULL || home[0] != '/')
        fail(EXIT_STORAGE, "set HOME, or set OPENCOTI_EXTRACT_DIR to an absolute path where the engine may be unpacked",
             "cannot unpack the engine: HOME is %s, and OPENCOTI_EXTRACT_DIR is not set",
             home == NULL ? "not set" : home[0] == '\0' ? "empty" : "not an absolute path");
    int fd = open(home, OPEN_FOLDER);
    if (fd < 0)
        fail(EXIT_STORAGE, "set HOME to your home folder, or set OPENCOTI_EXTRACT_DIR",
             "cannot unpack the engine: HOME is %s: %s", home, strerror(errno));
    return enter(enter((struct folder){fd, home}, ".llamafile"), "v");
}

/* Files of a folder on a noexec mount cannot be started: say so before anything is written. */
static void check_executable(const struct folder *folder)
{
    struct statvfs info;
    if (fstatvfs(folder->fd, &info) == 0 && (info.f_flag & ST_NOEXEC) != 0)
        fail(EXIT_STORAGE, "set OPENCOTI_EXTRACT_DIR to a folder on a file system that allows it",
             "cannot start the engine from %s: its file system is mounted noexec", folder->path);
}

struct folder folder_open(const struct index *index)
{
    /* secure_getenv: a set-user-id copy of the artifact must not write where its caller says. */
    const char *chosen = secure_getenv("OPENCOTI_EXTRACT_DIR");
    bool is_chosen = chosen != NULL && chosen[0] != '\0';
    if (is_chosen && chosen[0] != '/')
        fail(EXIT_STORAGE, "give the whole path, from / on", "OPENCOTI_EXTRACT_DIR is %s: not an absolute path", chosen);
    struct folder base = is_chosen ? open_base(chosen) : open_home(secure_getenv("HOME"));
    struct folder folder = enter(base, format_text("%s-%." VERSION_DIGITS "s", index->version, index->sha256_hex));
    check_executable(&folder);
    return folder;
}

static int open_lock(const struct folder *folder)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        struct stat info;
        int fd = openat(folder->fd, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
        if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
            return fd;
        if (fd < 0 && errno != ELOOP && errno != EISDIR && errno != ENXIO)
            return -1;
        if (fd >= 0)
            close(fd);
        /* Somebody put a link, a pipe or a folder there; it is in the way of the lock. */
        if (unlinkat(folder->fd, LOCK_NAME, 0) != 0 && unlinkat(folder->fd, LOCK_NAME, AT_REMOVEDIR) != 0)
            return -1;
    }
    return -1;
}

int folder_lock(const struct folder *folder)
{
    int fd = open_lock(folder);
    if (fd < 0)
        return -1;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    if (errno == EWOULDBLOCK)
        notice("waiting for another start of this artifact, which is unpacking it");
    int result = -1;
    do {
        result = flock(fd, LOCK_EX);
    } while (result != 0 && errno == EINTR);
    if (result == 0)
        return fd;
    close(fd);
    return -1;
}

unsigned long long folder_free_bytes(int fd)
{
    struct statvfs info;
    return fstatvfs(fd, &info) == 0 ? (unsigned long long)info.f_bavail * info.f_frsize : 0;
}
