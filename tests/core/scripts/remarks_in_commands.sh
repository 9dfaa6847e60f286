show a \
  `# the first` \
  b --c `# and what it is for` \
  d
show f `echo g` h
