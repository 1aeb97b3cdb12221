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

// The generated code refers to an object with the contract's types; `wasm-tools component embed` adds them instead.
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

// An adapter keeps its id in another port if it has a serial number; else the port identifies it. One with several lines
// has an interface for each.
static string identity(const entry *entry) {
  string serial = variable(entry, "ID_SERIAL_SHORT");
  string whole = serial.len ? variable(entry, "ID_SERIAL") : variable(entry, "ID_PATH");
  if (!whole.len) whole = entry->devpath;
  string interface = variable(entry, "ID_USB_INTERFACE_NUM");
  size_t len = whole.len + 1 + interface.len;
  string id = {allocate(len, 1), len};
  memcpy(id.ptr, whole.ptr, whole.len);
  id.ptr[whole.len] = '/';
  if (interface.len) memcpy(id.ptr + whole.len + 1, interface.ptr, interface.len);
  return id;
}

static void add_property(device *device, const char *name, string value) {
  if (value.len) device->properties.ptr[device->properties.len++] = (pair){text(name), copy(value)};
}

static device found(const entry *entry) {
  device device;
  memset(&device, 0, sizeof device);
  device.id = identity(entry);
  device.origin = text("");
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

// Two rules may match one adapter.
static void add(exports_akri_discovery_handler_list_device_t *devices, device device) {
  bool is_known = devices->len == MAX_DEVICES;
  for (size_t i = 0; i < devices->len && !is_known; i++) {
    string other = devices->ptr[i].id;
    is_known = other.len == device.id.len && !memcmp(other.ptr, device.id.ptr, other.len);
  }
  if (is_known) {
    exports_akri_discovery_handler_device_free(&device);
  } else {
    devices->ptr[devices->len++] = device;
  }
}

static void match_property(akri_discovery_udev_borrow_query_t query, const char *name, const char *glob) {
  string key = lent(name), value = lent(glob);
  akri_discovery_udev_method_query_match_property(query, &key, &value);
}

// Adds what one rule matches. The host compares, so that it passes on no other devices.
static bool find(const struct rule *rule, exports_akri_discovery_handler_list_device_t *devices,
                 akri_discovery_udev_access_error_t *error) {
  akri_discovery_udev_own_query_t query = akri_discovery_udev_constructor_query();
  akri_discovery_udev_borrow_query_t lent_query = akri_discovery_udev_borrow_query(query);
  string tty = lent("tty");
  akri_discovery_udev_method_query_match_subsystem(lent_query, &tty);
  match_property(lent_query, "ID_BUS", "usb");
  match_property(lent_query, "ID_VENDOR_ID", rule->vendor);
  match_property(lent_query, "ID_MODEL_ID", rule->product);
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
      if (page.ptr[i].devnode.is_some) add(devices, found(&page.ptr[i]));
    }
    akri_discovery_udev_list_entry_free(&page);
  } while (count > 0);
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
  ret->ptr = allocate(MAX_DEVICES, sizeof *ret->ptr);
  ret->len = 0;
  for (int i = 0; i < count; i++) {
    akri_discovery_udev_access_error_t error;
    if (!find(&rules[i], ret, &error)) {
      exports_akri_discovery_handler_list_device_free(ret);
      add_failure(err, &error);
      return false;
    }
  }
  return true;
}
