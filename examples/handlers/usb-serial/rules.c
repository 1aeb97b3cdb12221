#include "rules.h"

#include <stdbool.h>
#include <string.h>

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static bool is_glob_of_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c && strchr("*?[]!|-", c));
}

// Copies a glob, or returns false if it is empty, too long or has other characters than hexadecimal digits.
static bool copy_glob(char to[MAX_GLOB + 1], const char *from, size_t len) {
  if (len == 0 || len > MAX_GLOB) return false;
  for (size_t i = 0; i < len; i++) {
    char lower = from[i] >= 'A' && from[i] <= 'F' ? (char)(from[i] - 'A' + 'a') : from[i];
    if (!is_glob_of_hex(lower)) return false;
    to[i] = lower;
  }
  to[len] = '\0';
  return true;
}

static bool parse_rule(const char *line, size_t len, struct rule *rule) {
  const char *colon = memchr(line, ':', len);
  if (!colon) return false;
  size_t vendor = (size_t)(colon - line);
  return copy_glob(rule->vendor, line, vendor) && copy_glob(rule->product, colon + 1, len - vendor - 1);
}

int parse_rules(const char *text, size_t len, struct rule rules[MAX_RULES]) {
  int count = 0;
  for (int number = 1; len > 0; number++) {
    const char *end = memchr(text, '\n', len);
    size_t line = end ? (size_t)(end - text) : len;
    size_t first = 0, last = line;
    while (first < last && is_blank(text[first])) first++;
    while (last > first && is_blank(text[last - 1])) last--;
    if (first < last && text[first] != '#') {
      if (count == MAX_RULES || !parse_rule(text + first, last - first, &rules[count])) return -number;
      count++;
    }
    size_t taken = end ? line + 1 : line;
    text += taken;
    len -= taken;
  }
  return count;
}
