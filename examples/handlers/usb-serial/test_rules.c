#include "rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct rule rules[MAX_RULES];

static int parse(const char *text) { return parse_rules(text, strlen(text), rules); }

static void check(int ok, const char *what) {
  if (!ok) {
    fprintf(stderr, "failed: %s\n", what);
    exit(1);
  }
}

int main(void) {
  check(parse("# adapters\n\n 0403:6001 \n10C4:*\r\n") == 2, "two rules");
  check(!strcmp(rules[0].vendor, "0403") && !strcmp(rules[0].product, "6001"), "the first");
  check(!strcmp(rules[1].vendor, "10c4") && !strcmp(rules[1].product, "*"), "ids are in lower case");
  check(parse("") == 0, "no rule");
  check(parse("0403:6001\n0403\n") == -2, "a line without a colon");
  check(parse(":6001") == -1 && parse("0403:") == -1 && parse("0403:ttyUSB0") == -1, "what is no id");
  char many[MAX_RULES * 4 + 5] = "";
  for (int i = 0; i <= MAX_RULES; i++) strcat(many, "1:2\n");
  check(parse(many) == -(MAX_RULES + 1), "too many rules");
  puts("ok");
  return 0;
}
