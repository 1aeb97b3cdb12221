// The discovery handler `usb-serial`: serial adapters on USB, by the ids of vendor and product.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "discovery_handler.h"
#include "rules.h"

// Devices of a round.
#define MAX_DEVICES 256
// Entries fetched at once.
#define PAGE 64

typedef discovery_handler_string_t string;
typedef discovery_handler_tuple2_string_string_t pair;
typedef akri_discovery_udev_entry_t entry;
typedef akri_discovery_types_device_t device;

// The generated code refers to an object with the contract's types; `akri handler componentize` adds them instead.
void __component_type_object_force_link_discovery_handler(void) {}

// What is returned is freed by the generated code, and so is always copied to memory of its own.
static string copy(string from) {
  string result;
  discovery_handler_string_dup_n(&result, (const char *)from.ptr, from.len);
  return result;
}

// A text that is only lent, to the host's functions and to `copy`.
static string lent(const char *text) {
  string result;
  discovery_handler_string_set(&result, text);
  return result;
}

static string text(const char *text) { return copy(lent(text)); }

static void *allocate(size_t count, size_t size) {
  void *memory = calloc(count ? count : 1, size);
  if (!memory) abort();
  return memory;
}

void exports_akri_discovery_handler_describe(exports_akri_discovery_handler_description_t *ret) {
  ret->name = text("usb-serial");
  ret->version = text("0.1.0");
  ret->shared = false;
  ret->hints.ptr = allocate(1, sizeof(pair));
  ret->hints.ptr[0] = (pair){text("interval-ms"), text("300000")};
  ret->hints.len = 1;
}

static void add_problem(akri_discovery_types_list_problem_t *problems, int line) {
  char message[128];
  snprintf(message, sizeof message, "line %d is no rule such as 0403:6001 or 10c4:*, of which there are at most %d", line,
           MAX_RULES);
  problems->ptr = allocate(1, sizeof *problems->ptr);
  problems->ptr[0] = (akri_discovery_types_problem_t){text(""), text("InvalidRule"), text(message)};
  problems->len = 1;
}

// Besides the interval, kernel events of serial lines start a round.
bool exports_akri_discovery_handler_validate(string *details, discovery_handler_list_tuple2_string_string_t *ret,
                                             exports_akri_discovery_handler_list_problem_t *err) {
  struct rule rules[MAX_RULES];
  int count = parse_rules((const char *)details->ptr, details->len, rules);
  discovery_handler_string_free(details);
  if (count < 0) {
    akri_discovery_types_list_problem_t problems;
    add_problem(&problems, -count);
    err->ptr = problems.ptr;
    err->len = problems.len;
    return false;
  }
  ret->ptr = allocate(1, sizeof(pair));
  ret->ptr[0] = (pair){text("uevent"), text("tty")};
  ret->len = 1;
  return true;
}

// Returns the value of a variable of the kernel or of udev, or "".
static string variable(const entry *entry, const char *name) {
  for (size_t i = 0; i < entry->properties.len; i++) {
    pair *property = &entry->properties.ptr[i];
    if (property->f0.len == strlen(name) && !memcmp(property->f0.ptr, name, property->f0.len)) return property->f1;
  }
  return lent("");
}

// Returns the value of the only attribute that is asked for, or "".
static string port_number(const entry *entry) { return entry->attributes.len ? entry->attributes.ptr[0].f1 : lent(""); }

static void append(string *to, string part) {
  if (part.len) memcpy(to->ptr + to->len, part.ptr, part.len);
  to->len += part.len;
}

// Returns what tells adapters apart, the interface of USB, and the port of that unless it is "".
static string joined(string whole, string interface, string port) {
  string id = {allocate(whole.len + interface.len + port.len + 2, 1), 0};
  append(&id, whole);
  append(&id, lent("/"));
  append(&id, interface);
  if (port.len) append(&id, lent("/"));
  append(&id, port);
  return id;
}

// Where the adapter is plugged in.
static string place(const entry *entry) {
  string path = variable(entry, "ID_PATH");
  return path.len ? path : entry->devpath;
}

// An adapter keeps its id in another place if it has a serial number; else the place identifies it. One with several lines
// has an interface for each.
static string identity(const entry *entry) {
  bool has_serial = variable(entry, "ID_SERIAL_SHORT").len && variable(entry, "ID_SERIAL").len;
  string whole = has_serial ? variable(entry, "ID_SERIAL") : place(entry);
  return joined(whole, variable(entry, "ID_USB_INTERFACE_NUM"), lent(""));
}

// Serial numbers may be those of all adapters of a model, and an interface may have several lines.
static string identity_in_place(const entry *entry) {
  return joined(place(entry), variable(entry, "ID_USB_INTERFACE_NUM"), port_number(entry));
}

static void add_property(device *device, const char *name, string value) {
  if (value.len) device->properties.ptr[device->properties.len++] = (pair){text(name), copy(value)};
}

static device found(const entry *entry) {
  device device;
  memset(&device, 0, sizeof device);
  device.id = identity(entry);
  device.origin = copy(entry->devpath);  // by which one that can't be read is kept
  device.properties.ptr = allocate(4, sizeof(pair));
  add_property(&device, "SERIAL_DEVNODE", entry->devnode.val);
  add_property(&device, "SERIAL_VENDOR", variable(entry, "ID_VENDOR"));
  add_property(&device, "SERIAL_MODEL", variable(entry, "ID_MODEL"));
  add_property(&device, "SERIAL_NUMBER", variable(entry, "ID_SERIAL_SHORT"));
  device.device_specs.ptr = allocate(1, sizeof *device.device_specs.ptr);
  device.device_specs.ptr[0] =
      (akri_discovery_types_device_spec_t){copy(entry->devnode.val), copy(entry->devnode.val), text("rw")};
  device.device_specs.len = 1;
  return device;
}

// What a round found: devices, and the id of each in its place.
struct list {
  exports_akri_discovery_handler_list_device_t devices;
  string places[MAX_DEVICES];
};

static bool equal(string a, string b) { return a.len == b.len && !memcmp(a.ptr, b.ptr, a.len); }

static void note_dropped(string devnode, const char *why) {
  char message[256];
  snprintf(message, sizeof message, "%.*s is left out: %s", (int)(devnode.len < 128 ? devnode.len : 128),
           (const char *)devnode.ptr, why);
  string origin = lent(""), reason = lent("LeftOut"), text = lent(message);
  akri_discovery_round_note(&origin, &reason, &text);
}

// Two rules may match one line.
static void add(struct list *list, const entry *entry) {
  size_t len = list->devices.len;
  for (size_t i = 0; i < len; i++) {
    if (equal(list->devices.ptr[i].device_specs.ptr[0].host_path, entry->devnode.val)) return;
  }
  if (len == MAX_DEVICES) {
    note_dropped(entry->devnode.val, "there are too many");
    return;
  }
  list->devices.ptr[len] = found(entry);
  list->places[len] = identity_in_place(entry);
  list->devices.len++;
}

static bool is_in(string id, const device *devices, size_t len, size_t except) {
  for (size_t i = 0; i < len; i++) {
    if (i != except && equal(devices[i].id, id)) return true;
  }
  return false;
}

// Gives all that share an id the one of their place, and leaves out what still shares one.
static void tell_apart(struct list *list) {
  device *devices = list->devices.ptr;
  size_t len = list->devices.len, kept = 0;
  bool clashes[MAX_DEVICES];
  for (size_t i = 0; i < len; i++) clashes[i] = is_in(devices[i].id, devices, len, i);
  for (size_t i = 0; i < len; i++) {
    string unused = list->places[i];
    if (clashes[i]) {
      unused = devices[i].id;
      devices[i].id = list->places[i];
    }
    discovery_handler_string_free(&unused);
  }
  for (size_t i = 0; i < len; i++) {
    if (is_in(devices[i].id, devices, kept, kept)) {
      note_dropped(devices[i].device_specs.ptr[0].host_path, "another has the same id");
      exports_akri_discovery_handler_device_free(&devices[i]);
    } else {
      devices[kept++] = devices[i];
    }
  }
  list->devices.len = kept;
}

static void match_property(akri_discovery_udev_borrow_query_t query, const char *name, const char *glob) {
  string key = lent(name), value = lent(glob);
  akri_discovery_udev_method_query_match_property(query, &key, &value);
}

// Keeps the devices that are there and could not be read: their ids are not known, but their paths are.
static void keep_unreadable(akri_discovery_udev_borrow_snapshot_t snapshot) {
  discovery_handler_list_string_t paths;
  akri_discovery_udev_method_snapshot_unreadable(snapshot, &paths);
  for (size_t i = 0; i < paths.len; i++) akri_discovery_round_keep(&paths.ptr[i]);
  discovery_handler_list_string_free(&paths);
}

// Adds what one rule matches. The host compares, so that it passes on no other devices.
static bool find(const struct rule *rule, struct list *list, akri_discovery_udev_access_error_t *error) {
  akri_discovery_udev_own_query_t query = akri_discovery_udev_constructor_query();
  akri_discovery_udev_borrow_query_t lent_query = akri_discovery_udev_borrow_query(query);
  string tty = lent("tty");
  akri_discovery_udev_method_query_match_subsystem(lent_query, &tty);
  match_property(lent_query, "ID_BUS", "usb");
  match_property(lent_query, "ID_VENDOR_ID", rule->vendor);
  match_property(lent_query, "ID_MODEL_ID", rule->product);
  string port = lent("device/port_number");
  akri_discovery_udev_method_query_read_attribute(lent_query, &port);
  akri_discovery_udev_own_snapshot_t snapshot;
  bool ok = akri_discovery_udev_method_query_run(lent_query, &snapshot, error);
  akri_discovery_udev_query_drop_own(query);
  if (!ok) return false;
  size_t count;
  do {
    akri_discovery_udev_list_entry_t page;
    akri_discovery_udev_method_snapshot_next(akri_discovery_udev_borrow_snapshot(snapshot), PAGE, &page);
    count = page.len;
    for (size_t i = 0; i < count; i++) {
      if (page.ptr[i].devnode.is_some) add(list, &page.ptr[i]);
    }
    akri_discovery_udev_list_entry_free(&page);
  } while (count > 0);
  keep_unreadable(akri_discovery_udev_borrow_snapshot(snapshot));
  akri_discovery_udev_snapshot_drop_own(snapshot);
  return true;
}

static void add_failure(exports_akri_discovery_handler_discovery_error_t *err, akri_discovery_udev_access_error_t *error) {
  bool is_denied = error->tag == AKRI_DISCOVERY_TYPES_ACCESS_ERROR_NOT_GRANTED;
  err->tag = is_denied ? AKRI_DISCOVERY_TYPES_DISCOVERY_ERROR_NOT_GRANTED : AKRI_DISCOVERY_TYPES_DISCOVERY_ERROR_UNAVAILABLE;
  string reason = copy(is_denied ? error->val.not_granted : error->val.unavailable);
  if (is_denied) {
    err->val.not_granted = reason;
  } else {
    err->val.unavailable = reason;
  }
  akri_discovery_udev_access_error_free(error);
}

// One round: every adapter there is now. What is not in the list has gone.
bool exports_akri_discovery_handler_discover(string *details, exports_akri_discovery_handler_list_device_t *ret,
                                             exports_akri_discovery_handler_discovery_error_t *err) {
  struct rule rules[MAX_RULES];
  int count = parse_rules((const char *)details->ptr, details->len, rules);
  discovery_handler_string_free(details);
  if (count < 0) {
    err->tag = AKRI_DISCOVERY_TYPES_DISCOVERY_ERROR_INVALID_DETAILS;
    add_problem(&err->val.invalid_details, -count);
    return false;
  }
  static struct list list;
  list.devices.ptr = allocate(MAX_DEVICES, sizeof *list.devices.ptr);
  list.devices.len = 0;
  for (int i = 0; i < count; i++) {
    akri_discovery_udev_access_error_t error;
    if (!find(&rules[i], &list, &error)) {
      tell_apart(&list);
      exports_akri_discovery_handler_list_device_free(&list.devices);
      add_failure(err, &error);
      return false;
    }
  }
  tell_apart(&list);
  *ret = list.devices;
  return true;
}
