#!/usr/bin/env bash
# As much of curl as the README uses, for machines that have none: curl [-N] URL [-d BODY]
set -eu
export LC_ALL=C
while (($#)); do
    case $1 in
    -N) ;;
    -d) shift && body=$1 ;;
    http://*) url=${1#http://} ;;
    *) echo "curl: $1 is not known here" >&2 && exit 2 ;;
    esac
    shift
done
authority=${url%%/*}
elsewhere=$(sed -n "s/^connect-to = \"$authority:127.0.0.1:\(.*\)\"$/\1/p" "$CURL_HOME/.curlrc")
exec 3<>"/dev/tcp/127.0.0.1/${elsewhere:-${authority#*:}}"
# The old version of HTTP: the answer is not cut in chunks, and its end is the connection's.
if [[ -v body ]]; then
    printf 'POST /%s HTTP/1.0\r\nhost: %s\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: %d\r\n\r\n%s' \
        "${url#*/}" "$authority" "${#body}" "$body" >&3
else
    printf 'GET /%s HTTP/1.0\r\nhost: %s\r\n\r\n' "${url#*/}" "$authority" >&3
fi
while IFS= read -r line <&3 && [[ $line != $'\r' ]]; do :; done
exec cat <&3
