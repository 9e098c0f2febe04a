# A small C project: history made in memory, cloned to the mount, built and used there.
mkdir -p /tmp/p && cd /tmp/p
export GIT_CONFIG_GLOBAL=/tmp/gitconfig
git config --global user.email a@b.c
git config --global user.name a
git config --global --add safe.directory '*'
git config --global init.defaultBranch main
git init -q .
mkdir src
for i in $($B seq 30); do
	printf '#include "all.h"\nint f%d(int x) { return x * %d + (int)strlen("f%d"); }\n' "$i" "$i" "$i" >src/f$i.c
	echo "int f$i(int);" >>src/all.h.new
done
{ echo '#include <stdio.h>'; echo '#include <string.h>'; cat src/all.h.new; } >src/all.h
rm src/all.h.new
{ echo '#include "all.h"'; echo 'int main(void) { int s = 0;'; for i in $($B seq 30); do echo "s += f$i(1);"; done; echo 'printf("%d\n", s); return 0; }'; } >src/main.c
cat >Makefile <<'P'
OBJS = $(patsubst src/%.c,obj/%.o,$(wildcard src/*.c))
prog: lib.a obj/main.o
	gcc -o $@ obj/main.o lib.a
lib.a: $(filter-out obj/main.o,$(OBJS))
	ar rcs $@ $^
obj/%.o: src/%.c src/all.h
	@mkdir -p obj
	gcc -O1 -Wall -c -o $@ $<
P
printf 'obj\nprog\nlib.a\n' >.gitignore
git add .
git commit -qm first
for i in 1 2 3 4 5; do
	echo "/* $i */" >>src/f$i.c
	git commit -qam "change $i"
done

m
say cloning
git clone -q --no-hardlinks /tmp/p $M/p
cd $M/p
is commits "$(git rev-list --count HEAD)" 6
say building
make -s -j2
is "what it says" "$(./prog)" 546
is "changed files" "$(git status --porcelain)" ""
say "branch, commit, merge, gc, fsck"
git checkout -qb work HEAD~3
echo '/* w */' >>src/main.c
git commit -qam work
git checkout -q main
git merge -q -m merge work
git gc -q
git fsck --strict
forget
is "changed files" "$(git status --porcelain)" ""
make -s -j2
is "what it says" "$(./prog)" 546
git clone -q $M/p $M/q
diff -r $M/p/src $M/q/src
cd /
rm -rf $M/p $M/q
umount $M
