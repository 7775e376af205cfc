#!/bin/sh
# Lay out, in the folder $1, what Python needs of this Debian and no more: no shell, no package manager, no perl.
# Whatever of it is a package is noted where scanners of images without a package manager look for it.
set -eu
root=$1

packages="base-files ca-certificates netbase media-types tzdata
  libc6 libgcc-s1 libstdc++6 zlib1g libbz2-1.0 liblzma5 libzstd1 libexpat1 libffi8 libssl3t64 libsqlite3-0 libuuid1
  libdb5.3t64 libncursesw6 libtinfo6 libreadline8t64
  libpython3.13-minimal libpython3.13-stdlib python3.13-minimal python3.13"

mkdir -p "$root"
# Licences stay, whatever nobody reads in a container goes; what packages leave out, nothing has to remove later.
dpkg-query --listfiles $packages | sort -u |
  grep -Ev '^/(\.|etc/(cron|logrotate|apt|skel|profile\.d|update-motd)[^/]*(/.*)?|usr/sbin/.*)?$' |
  grep -Ev '^/usr/share/(man|locale|info|lintian|bug|menu|applications|pixmaps|perl5|binfmts|gcc|gdb)(/.*)?$' |
  grep -Ev '^/usr/share/doc/[^/]+/.*[^t]$|/(idlelib|turtledemo|pydoc_data|ensurepip|python3.13/test)(/.*)?$|/gconv/.*$' |
  while read -r path; do [ -e "$path" ] && printf '%s\n' "$path"; done |
  sed 's|^/||' | tar --create --directory=/ --no-recursion --files-from=- | tar --extract --directory="$root"

mkdir -p "$root/etc/ssl/certs" "$root/var/lib/dpkg/status.d" "$root/home/nonroot" "$root/tmp"
chmod 1777 "$root/tmp"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
mkdir -p "$root/usr/lib/ssl"
ln -s /etc/ssl/certs/ca-certificates.crt "$root/usr/lib/ssl/cert.pem"  # where OpenSSL looks by itself
printf '%s\n' 'root:x:0:0:root:/:/usr/sbin/nologin' 'nonroot:x:65532:65532::/home/nonroot:/usr/sbin/nologin' >"$root/etc/passwd"
printf '%s\n' 'root:x:0:' 'nonroot:x:65532:' >"$root/etc/group"
for package in $packages; do dpkg-query --status "$package" >"$root/var/lib/dpkg/status.d/$package"; done

# Times of files change on their way into a registry, so bytecode is not to depend on them.
python3 -m compileall -q -j 0 -s "$root" -p / --invalidation-mode unchecked-hash "$root/usr/lib/python3.13"
