#define _GNU_SOURCE
#include "install.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "message.h"
#include "output.h"
#include "stamp.h"

#define ANNOUNCED_BYTES (64U << 20)  /* extraction of more than this takes long enough to be told */
#define ABANDONED_AFTER_S 3600       /* age of a temporary file that no living process can own, when we hold no lock */

/* One used file: what the index wants, and the state of what is there. */
struct slot {
    const struct index_file *file;
    bool is_good;
    struct stat info;
};

struct installation {
    const struct archive *archive;
    const struct index *index;
    const struct folder *folder;
    struct slot *slots;
    size_t count;
    bool has_lock;
};

static bool is_own_name(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, LOCK_NAME) == 0 ||
           strcmp(name, STAMP_NAME) == 0;
}

static bool belongs(const struct index *index, const char *name)
{
    const struct index_file *file = index_find(index, name);
    return is_own_name(name) || (file != NULL && is_extracted(file));
}

static DIR *list_folder(const struct folder *folder)
{
    int fd = openat(folder->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    if (list == NULL)
        fail(EXIT_STORAGE, storage_hint(errno), "cannot list the folder %s: %s", folder->path, strerror(errno));
    return list;
}

/* Whether something is in the folder that the engine could take for a library of its own. It looks for plain names
 * only, so a name with a dot in front, like another start's temporary file, is no danger. */
static bool has_stranger(const struct installation *work)
{
    bool found = false;
    DIR *list = list_folder(work->folder);
    for (struct dirent *entry; !found && (entry = readdir(list)) != NULL;)
        found = entry->d_name[0] != '.' && !belongs(work->index, entry->d_name);
    closedir(list);
    return found;
}

/* The state of a used file: in the folder, or that of the artifact for a part. */
static bool look_at(const struct installation *work, const struct index_file *file, struct stat *info)
{
    if (file->is_part)
        return fstat(work->archive->fd, info) == 0;
    return fstatat(work->folder->fd, file->name, info, AT_SYMLINK_NOFOLLOW) == 0;
}

static bool is_current(const struct installation *work)
{
    struct stamp stamp = stamp_load(work->folder, work->index);
    if (stamp.lines == NULL)
        return false;
    for (size_t i = 0; i < work->count; i++) {
        const struct index_file *file = work->slots[i].file;
        struct stat info;
        if (!look_at(work, file, &info) || !stamp_matches(&stamp, i, file, &info))
            return false;
    }
    return !has_stranger(work);
}

/* Another start may be writing it right now, if the file system has no locks. */
static bool is_in_use(const struct installation *work, const char *name)
{
    struct stat info;
    if (work->has_lock || strncmp(name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) != 0)
        return false;
    return fstatat(work->folder->fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
           time(NULL) - info.st_mtim.tv_sec < ABANDONED_AFTER_S;
}

/* Remove a file, a link or an empty folder; anything else is for the user to decide. */
static bool remove_name(const struct installation *work, const char *name)
{
    int folder = work->folder->fd;
    if (unlinkat(folder, name, 0) == 0 || errno == ENOENT)
        return true;
    return errno != EROFS && errno != EACCES && unlinkat(folder, name, AT_REMOVEDIR) == 0;
}

static void remove_stranger(const struct installation *work, const char *name)
{
    bool is_temporary = strncmp(name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0;
    bool is_removed = remove_name(work, name);
    if (is_removed && !is_temporary)
        notice("removed %s from %s: it is not part of this artifact", name, work->folder->path);
    if (!is_removed && name[0] != '.')
        fail(EXIT_STORAGE, "move it away, then start again",
             "refusing the folder %s: it holds %s, which is not part of this artifact and cannot be removed: %s",
             work->folder->path, name, strerror(errno));
}

static void remove_strangers(const struct installation *work)
{
    DIR *list = list_folder(work->folder);
    for (struct dirent *entry; (entry = readdir(list)) != NULL;)
        if (!belongs(work->index, entry->d_name) && !is_in_use(work, entry->d_name))
            remove_stranger(work, entry->d_name);
    closedir(list);
}

/* Compare the file that is open as `fd` with the index; its state is taken before it is read. */
static bool has_right_bytes(int fd, struct slot *slot)
{
    uint8_t digest[SHA256_SIZE];
    if (fstat(fd, &slot->info) != 0 || !S_ISREG(slot->info.st_mode) || slot->info.st_uid != geteuid() ||
        (uint64_t)slot->info.st_size != slot->file->size)
        return false;
    return hash_range(fd, 0, slot->file->size, digest) && memcmp(digest, slot->file->sha256, SHA256_SIZE) == 0;
}

static bool has_right_mode(int fd, struct slot *slot)
{
    if ((slot->info.st_mode & 07777) == slot->file->mode)
        return true;
    return fchmod(fd, slot->file->mode) == 0 && fstat(fd, &slot->info) == 0;
}

/* A part cannot be replaced: it is right, or the artifact is damaged. Its state is taken before it is read. */
static void check_part(const struct installation *work, struct slot *slot, const struct stamp *stamp, size_t position)
{
    uint8_t digest[SHA256_SIZE];
    const struct index_file *file = slot->file;
    int artifact = work->archive->fd;
    slot->is_good = look_at(work, file, &slot->info) && stamp_matches(stamp, position, file, &slot->info);
    if (slot->is_good)
        return;
    if (file->size > ANNOUNCED_BYTES)
        notice("checking %llu MB of %s, once", (unsigned long long)file->size / 1000000, file->name);
    slot->is_good = hash_range(artifact, archive_data_offset(work->archive, file->member), file->size, digest) &&
                    memcmp(digest, file->sha256, SHA256_SIZE) == 0;
    if (!slot->is_good)
        fail_damaged("the SHA-256 of member %s is not the one in its index", file->name);
}

/* Find out whether the file of a slot is good; a wrong one is removed, which also frees its space. */
static void check_file(const struct installation *work, struct slot *slot, const struct stamp *stamp, size_t position)
{
    const char *name = slot->file->name;
    if (fstatat(work->folder->fd, name, &slot->info, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
        return;
    slot->is_good = stamp_matches(stamp, position, slot->file, &slot->info);
    if (slot->is_good)
        return;
    int fd = openat(work->folder->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        slot->is_good = has_right_bytes(fd, slot) && has_right_mode(fd, slot);
        close(fd);
    }
    if (slot->is_good)
        return;
    notice("replacing %s in %s: it differs from this artifact", name, work->folder->path);
    if (!remove_name(work, name))
        fail(EXIT_STORAGE, storage_hint(errno), "cannot replace %s/%s, which differs from this artifact: %s",
             work->folder->path, name, strerror(errno));
}

static void check_slots(const struct installation *work)
{
    struct stamp stamp = stamp_load(work->folder, work->index);
    for (size_t i = 0; i < work->count; i++) {
        struct slot *slot = &work->slots[i];
        (slot->file->is_part ? check_part : check_file)(work, slot, &stamp, i);
    }
}

static void write_missing(const struct installation *work)
{
    struct target target = {
        .fd = work->folder->fd, .path = work->folder->path, .missing_bytes = 0, .may_replace = true};
    for (size_t i = 0; i < work->count; i++)
        target.missing_bytes += work->slots[i].is_good ? 0 : work->slots[i].file->size;
    if (target.missing_bytes > ANNOUNCED_BYTES)
        notice("unpacking %llu MB to %s, once", (unsigned long long)target.missing_bytes / 1000000, target.path);
    for (size_t i = 0; i < work->count; i++) {
        struct slot *slot = &work->slots[i];
        if (slot->is_good)
            continue;
        slot->info = write_member(work->archive, slot->file, &target);
        target.missing_bytes -= slot->file->size;
    }
}

/* Without a note every start reads all files again: right, only slow, so it is told and no more. */
static void record(const struct installation *work)
{
    struct stat *infos = allocate(work->count, sizeof *infos);
    for (size_t i = 0; i < work->count; i++)
        infos[i] = work->slots[i].info;
    fsync(work->folder->fd);
    int error = stamp_save(work->folder, work->index, infos);
    free(infos);
    if (error != 0)
        notice("cannot note in %s that its files are verified (%s): the next start reads them again",
               work->folder->path, strerror(error));
}

static void repair(struct installation *work)
{
    int lock = folder_lock(work->folder);
    work->has_lock = lock >= 0;
    if (!is_current(work)) {
        remove_strangers(work);
        check_slots(work);
        write_missing(work);
        record(work);
        if (has_stranger(work))
            fail(EXIT_STORAGE, "find the program that writes there", "refusing the folder %s: files keep appearing in it",
                 work->folder->path);
    }
    if (lock >= 0)
        close(lock);
}

void install(const struct archive *archive, const struct index *index, const struct folder *folder)
{
    struct installation work = {.archive = archive, .index = index, .folder = folder};
    work.slots = allocate(index->count, sizeof *work.slots);
    for (size_t i = 0; i < index->count; i++)
        if (is_used(&index->files[i]))
            work.slots[work.count++].file = &index->files[i];
    if (!is_current(&work))
        repair(&work);
    free(work.slots);
}
