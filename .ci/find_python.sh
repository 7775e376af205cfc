#!/bin/sh
# Print the path of a CPython that the lock files have wheels for. Every candidate is executed, never trusted by its
# name: a pyenv shim called python3.13 fails unless that version is selected. In order: $PYTHON alone if it is set, names
# on PATH, interpreters that a version manager keeps (found through its shims on PATH too, for an empty HOME), usual
# folders, what uv has or can fetch, what apt can install for root. PYTHON_DOWNLOADS=never stops before the last two.
set -u

minors="13 14 12"
have_uv=no
uv --version >/dev/null 2>&1 && have_uv=yes
[ "$have_uv" = no ] && extra=", ensurepip"  # without uv, pip has to fetch it
suits="
import platform, sys, sysconfig
import ctypes, sqlite3, ssl, zlib${extra:-}"'
good = platform.python_implementation() == "CPython" and (3, 12) <= sys.version_info[:2] <= (3, 14)
good = good and sys.version_info.releaselevel == "final" and not sysconfig.get_config_var("Py_GIL_DISABLED")
print(getattr(sys, "_base_executable", sys.executable)) if good else sys.exit(1)
'

try() {
  command -v "$1" >/dev/null 2>&1 || return 0
  found=$("$1" -I -c "$suits" 2>/dev/null) || return 0
  [ -n "$found" ] && printf '%s\n' "$found" && exit 0
}

try_managed() {  # the folders in which pyenv, asdf, mise and uv keep interpreters, below $1
  for minor in $minors; do
    for path in "$1"/versions/3."$minor"*/bin/python3 "$1"/installs/python/3."$minor"*/bin/python3 \
      "$1"/python/cpython-3."$minor".*/bin/python3; do
      try "$path"
    done
  done
}

try_uv() {
  for minor in $minors; do
    try "$(UV_PYTHON_DOWNLOADS=never uv python find --no-project "3.$minor" 2>/dev/null)"
  done
  [ "${PYTHON_DOWNLOADS:-}" = never ] && return 0
  echo "no suitable Python here, uv is asked to fetch one" >&2
  UV_HTTP_RETRIES=1 uv python install --quiet 3.13 >/dev/null 2>&1 &&
    try "$(UV_PYTHON_DOWNLOADS=never uv python find --no-project 3.13 2>/dev/null)"
  return 0
}

if [ -n "${PYTHON:-}" ]; then
  try "$PYTHON"
  echo "PYTHON=$PYTHON does not run, or is not a released CPython 3.12 to 3.14 with ssl, sqlite3 and ensurepip" >&2
  exit 1
fi

for minor in $minors; do try "python3.$minor"; done
try python3
try python

old_ifs=$IFS
IFS=:
for entry in $PATH; do
  IFS=$old_ifs
  case $entry in */shims | */bin) try_managed "${entry%/*}" ;; esac
done
IFS=$old_ifs
[ -n "${PYENV_ROOT:-}" ] && try_managed "$PYENV_ROOT"
for root in .pyenv .asdf .local/share/mise .local/share/uv; do try_managed "${HOME:-/nonexistent}/$root"; done
for minor in $minors; do
  for folder in /usr/local/bin /usr/bin /opt/homebrew/bin /opt/python/bin; do try "$folder/python3.$minor"; done
done

[ "$have_uv" = yes ] && try_uv

if [ "${PYTHON_DOWNLOADS:-}" != never ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "no suitable Python here, apt is asked for one" >&2
  apt-get update -qq >/dev/null 2>&1
  for minor in $minors; do
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      "python3.$minor" "python3.$minor-venv" >/dev/null 2>&1 </dev/null && try "/usr/bin/python3.$minor"
  done
fi

cat >&2 <<'TEXT'
No CPython 3.12 to 3.14 was found. Install one and run make again, for example:
  apt-get install python3.13 python3.13-venv
  brew install python@3.13
  pyenv install 3.13
  uv python install 3.13
or name one: make install PYTHON=/path/to/python3
TEXT
exit 1
