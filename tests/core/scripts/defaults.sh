E=
show ${X:-8} "${X:-a b}" ${X:-a b} ${X-7} ${E:-5} "${E-6}" ${E:+no} ${X:+no} "${Y:=9}" $Y ${A:-${B:-deep}} "${Q:-"in ner"}"
F=full
show ${F:-x} ${F:+"set now"} ${F-x} ${F:=y}
L=${L:-['npu','cpu']}
R=${R:-[2,4]}
show $L "$R"
