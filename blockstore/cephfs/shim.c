//go:build cephfs && linux

#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

// What is used of the library.
#define CEPH(f) \
	f(ceph_create) f(ceph_conf_read_file) f(ceph_conf_parse_env) f(ceph_conf_set) f(ceph_conf_get) f(ceph_init) f(ceph_select_filesystem) \
	f(ceph_mount) f(ceph_get_fs_cid) f(ceph_unmount) f(ceph_release) f(ceph_userperm_new) f(ceph_userperm_destroy) \
	f(ceph_ll_lookup_root) f(ceph_ll_lookup_vino) f(ceph_ll_lookup) f(ceph_ll_put) f(ceph_ll_getattr) \
	f(ceph_ll_setattr) f(ceph_ll_readlink) f(ceph_ll_mknod) f(ceph_ll_create) f(ceph_ll_mkdir) f(ceph_ll_symlink) \
	f(ceph_ll_link) f(ceph_ll_unlink) f(ceph_ll_rmdir) f(ceph_ll_rename) f(ceph_ll_open) f(ceph_ll_close) \
	f(ceph_ll_read) f(ceph_ll_write) f(ceph_ll_sync_inode) f(ceph_ll_lseek) f(ceph_ll_fallocate) \
	f(ceph_ll_statfs) f(ceph_ll_getxattr) f(ceph_ll_setxattr) f(ceph_ll_listxattr) f(ceph_ll_removexattr) \
	f(ceph_ll_opendir) f(ceph_ll_releasedir) f(ceph_readdir_r) f(ceph_readdirplus_r) f(ceph_telldir) f(ceph_seekdir) \
	f(ceph_ll_getlk) f(ceph_ll_setlk) f(ceph_set_deleg_timeout) f(ceph_ll_delegation) f(ceph_set_uuid) \
	f(ceph_start_reclaim) f(ceph_finish_reclaim) f(ceph_sync_fs)

static struct {
#define MEMBER(name) __typeof__(&name) name;
	CEPH(MEMBER)
#undef MEMBER
} fn;

static char load_error[256];
static void *library;

const char *rc_load(void)
{
	if (library)
		return NULL;
	void *lib = dlopen("libcephfs.so.2", RTLD_NOW);
#define FIND(name) if (!lib || !(fn.name = dlsym(lib, #name))) goto failed;
	CEPH(FIND)
#undef FIND
	library = lib;
	return NULL;
failed:
	strncpy(load_error, dlerror(), sizeof(load_error) - 1);
	if (lib)
		dlclose(lib);
	return load_error;
}

int rc_create(struct ceph_mount_info **m, const char *id) { return fn.ceph_create(m, id); }
int rc_conf_read_file(struct ceph_mount_info *m, const char *path) { return fn.ceph_conf_read_file(m, path); }
int rc_conf_parse_env(struct ceph_mount_info *m) { return fn.ceph_conf_parse_env(m, NULL); }
int rc_conf_set(struct ceph_mount_info *m, const char *option, const char *value) { return fn.ceph_conf_set(m, option, value); }
int rc_conf_get(struct ceph_mount_info *m, const char *option, char *buf, size_t n) { return fn.ceph_conf_get(m, option, buf, n); }
int rc_init(struct ceph_mount_info *m) { return fn.ceph_init(m); }
int rc_select_filesystem(struct ceph_mount_info *m, const char *name) { return fn.ceph_select_filesystem(m, name); }
int rc_mount(struct ceph_mount_info *m, const char *root) { return fn.ceph_mount(m, root); }
int64_t rc_get_fs_cid(struct ceph_mount_info *m) { return fn.ceph_get_fs_cid(m); }
int rc_unmount(struct ceph_mount_info *m) { return fn.ceph_unmount(m); }
int rc_release(struct ceph_mount_info *m) { return fn.ceph_release(m); }
UserPerm *rc_userperm_new(uid_t uid, gid_t gid, int n, gid_t *list) { return fn.ceph_userperm_new(uid, gid, n, list); }
void rc_userperm_destroy(UserPerm *p) { fn.ceph_userperm_destroy(p); }
int rc_lookup_root(struct ceph_mount_info *m, struct Inode **out) { return fn.ceph_ll_lookup_root(m, out); }

int rc_lookup_vino(struct ceph_mount_info *m, uint64_t ino, uint64_t snap, struct Inode **out)
{
	vinodeno_t v = { { ino }, { snap } };
	return fn.ceph_ll_lookup_vino(m, v, out);
}

int rc_lookup(struct ceph_mount_info *m, struct Inode *dir, const char *name, struct Inode **out, struct ceph_statx *stx, const UserPerm *p)
{
	return fn.ceph_ll_lookup(m, dir, name, out, stx, RC_WANT, AT_SYMLINK_NOFOLLOW, p);
}

void rc_put(struct ceph_mount_info *m, struct Inode *in) { fn.ceph_ll_put(m, in); }

int rc_getattr(struct ceph_mount_info *m, struct Inode *in, struct ceph_statx *stx, const UserPerm *p)
{
	return fn.ceph_ll_getattr(m, in, stx, RC_WANT, AT_SYMLINK_NOFOLLOW, p);
}

int rc_setattr(struct ceph_mount_info *m, struct Inode *in, struct ceph_statx *stx, int mask, const UserPerm *p)
{
	return fn.ceph_ll_setattr(m, in, stx, mask, p);
}

int rc_readlink(struct ceph_mount_info *m, struct Inode *in, char *buf, size_t n, const UserPerm *p)
{
	return fn.ceph_ll_readlink(m, in, buf, n, p);
}

int rc_mknod(struct ceph_mount_info *m, struct Inode *dir, const char *name, mode_t mode, dev_t dev, struct Inode **out, struct ceph_statx *stx, const UserPerm *p)
{
	return fn.ceph_ll_mknod(m, dir, name, mode, dev, out, stx, RC_WANT, AT_SYMLINK_NOFOLLOW, p);
}

int rc_mkfile(struct ceph_mount_info *m, struct Inode *dir, const char *name, mode_t mode, struct Inode **out, Fh **fh, struct ceph_statx *stx, const UserPerm *p)
{
	return fn.ceph_ll_create(m, dir, name, mode, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, out, fh, stx, RC_WANT, AT_SYMLINK_NOFOLLOW, p);
}

int rc_mkdir(struct ceph_mount_info *m, struct Inode *dir, const char *name, mode_t mode, struct Inode **out, struct ceph_statx *stx, const UserPerm *p)
{
	return fn.ceph_ll_mkdir(m, dir, name, mode, out, stx, RC_WANT, AT_SYMLINK_NOFOLLOW, p);
}

int rc_symlink(struct ceph_mount_info *m, struct Inode *dir, const char *name, const char *target, struct Inode **out, struct ceph_statx *stx, const UserPerm *p)
{
	return fn.ceph_ll_symlink(m, dir, name, target, out, stx, RC_WANT, AT_SYMLINK_NOFOLLOW, p);
}

int rc_link(struct ceph_mount_info *m, struct Inode *in, struct Inode *dir, const char *name, const UserPerm *p)
{
	return fn.ceph_ll_link(m, in, dir, name, p);
}

int rc_unlink(struct ceph_mount_info *m, struct Inode *dir, const char *name, const UserPerm *p) { return fn.ceph_ll_unlink(m, dir, name, p); }
int rc_rmdir(struct ceph_mount_info *m, struct Inode *dir, const char *name, const UserPerm *p) { return fn.ceph_ll_rmdir(m, dir, name, p); }

int rc_rename(struct ceph_mount_info *m, struct Inode *from, const char *name, struct Inode *to, const char *newname, const UserPerm *p)
{
	return fn.ceph_ll_rename(m, from, name, to, newname, p);
}

int rc_open(struct ceph_mount_info *m, struct Inode *in, int flags, Fh **fh, const UserPerm *p) { return fn.ceph_ll_open(m, in, flags, fh, p); }
int rc_close(struct ceph_mount_info *m, Fh *fh) { return fn.ceph_ll_close(m, fh); }
int rc_read(struct ceph_mount_info *m, Fh *fh, int64_t off, void *p, uint64_t n) { return fn.ceph_ll_read(m, fh, off, n, p); }
int rc_write(struct ceph_mount_info *m, Fh *fh, int64_t off, const void *p, uint64_t n) { return fn.ceph_ll_write(m, fh, off, n, p); }
int rc_sync_fs(struct ceph_mount_info *m) { return fn.ceph_sync_fs(m); }
int rc_sync_inode(struct ceph_mount_info *m, struct Inode *in) { return fn.ceph_ll_sync_inode(m, in, 0); }
int64_t rc_lseek(struct ceph_mount_info *m, Fh *fh, int64_t off, int whence) { return fn.ceph_ll_lseek(m, fh, off, whence); }
int rc_fallocate(struct ceph_mount_info *m, Fh *fh, int mode, int64_t off, int64_t n) { return fn.ceph_ll_fallocate(m, fh, mode, off, n); }
int rc_statfs(struct ceph_mount_info *m, struct Inode *in, struct statvfs *st) { return fn.ceph_ll_statfs(m, in, st); }

int rc_getxattr(struct ceph_mount_info *m, struct Inode *in, const char *name, void *p, size_t n, const UserPerm *perm)
{
	return fn.ceph_ll_getxattr(m, in, name, p, n, perm);
}

int rc_setxattr(struct ceph_mount_info *m, struct Inode *in, const char *name, const void *p, size_t n, int flags, const UserPerm *perm)
{
	return fn.ceph_ll_setxattr(m, in, name, p, n, flags, perm);
}

int rc_listxattr(struct ceph_mount_info *m, struct Inode *in, char *list, size_t n, size_t *got, const UserPerm *perm)
{
	return fn.ceph_ll_listxattr(m, in, list, n, got, perm);
}

int rc_removexattr(struct ceph_mount_info *m, struct Inode *in, const char *name, const UserPerm *perm)
{
	return fn.ceph_ll_removexattr(m, in, name, perm);
}

int rc_opendir(struct ceph_mount_info *m, struct Inode *in, struct ceph_dir_result **d, const UserPerm *p) { return fn.ceph_ll_opendir(m, in, d, p); }
void rc_seekdir(struct ceph_mount_info *m, struct ceph_dir_result *d, int64_t off) { fn.ceph_seekdir(m, d, off); }
int rc_releasedir(struct ceph_mount_info *m, struct ceph_dir_result *d) { return fn.ceph_ll_releasedir(m, d); }

int rc_readdir(struct ceph_mount_info *m, struct ceph_dir_result *d, struct rc_entry *list, int n, int plus)
{
	for (int i = 0; i < n; i++) {
		struct rc_entry *e = &list[i];
		struct dirent de;
		int r = plus ? fn.ceph_readdirplus_r(m, d, &de, &e->stx, RC_WANT, AT_SYMLINK_NOFOLLOW, NULL)
			     : fn.ceph_readdir_r(m, d, &de);
		if (r < 0)
			return i > 0 ? i : r;
		if (r == 0)
			return i;
		strncpy(e->name, de.d_name, sizeof(e->name) - 1);
		e->name[sizeof(e->name) - 1] = 0;
		e->ino = de.d_ino;
		e->next = fn.ceph_telldir(m, d);
		e->has = plus;
	}
	return n;
}

int rc_getlk(struct ceph_mount_info *m, Fh *fh, struct flock *fl) { return fn.ceph_ll_getlk(m, fh, fl, RC_OWNER); }
int rc_setlk(struct ceph_mount_info *m, Fh *fh, struct flock *fl) { return fn.ceph_ll_setlk(m, fh, fl, RC_OWNER, 0); }
int rc_set_deleg_timeout(struct ceph_mount_info *m, uint32_t seconds) { return fn.ceph_set_deleg_timeout(m, seconds); }

static void recalled(Fh *fh, void *lease)
{
	(void)fh;
	rcRecalled((uintptr_t)lease);
}

int rc_delegation(struct ceph_mount_info *m, Fh *fh, unsigned cmd, uintptr_t lease)
{
	return fn.ceph_ll_delegation(m, fh, cmd, recalled, (void *)lease);
}

void rc_set_uuid(struct ceph_mount_info *m, const char *uuid) { fn.ceph_set_uuid(m, uuid); }

int rc_reset_session(struct ceph_mount_info *m, const char *uuid)
{
	int r = fn.ceph_start_reclaim(m, uuid, CEPH_RECLAIM_RESET);
	if (r >= 0)
		fn.ceph_finish_reclaim(m);
	return r;
}
