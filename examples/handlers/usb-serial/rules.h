// The lines of `discoveryDetails`. It uses nothing of the host, so that its tests run everywhere.
#ifndef RULES_H
#define RULES_H

#include <stddef.h>

#define MAX_RULES 32
#define MAX_GLOB 32

// A line such as `0403:6001`: shell globs for the ids of vendor and product.
struct rule {
  char vendor[MAX_GLOB + 1];
  char product[MAX_GLOB + 1];
};

// Reads one rule from each line; empty lines and those that begin with '#' are ignored. Returns the number of rules, or the
// negative number of the first bad line, counted from 1; the line after the last allowed rule is bad.
int parse_rules(const char *text, size_t len, struct rule rules[MAX_RULES]);

#endif
