exec show last
show never
