show a # not this
# show b
show c#d "#e"
