v=12ab.tar.gz
show ${v%%[^0-9]*} ${v##*[!a-z]} ${v%%[[:alpha:]]*} ${v##[[:digit:]]}
case $v in [^a]*z) show first ;; esac
[[ $v == [[:digit:]]*[[:lower:]] ]] && show second
show "${v: -2}" "[${v: -20}]" "[${v:20}]" ${v:1:-3}
