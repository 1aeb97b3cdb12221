// The details and the inventory. It imports nothing of the host, so that its tests run everywhere.

const MAX_DEVICES = 1000;

// Returns the URL in `discoveryDetails`. The host has converted YAML to JSON; undefined is neither.
export function parseDetails(details) {
  const fields = details === undefined ? null : JSON.parse(details);
  if (!isMapping(fields) || Object.keys(fields).join() !== 'url' || typeof fields.url !== 'string') {
    throw new TypeError("the details must be a mapping with the field 'url'");
  }
  const url = parseUrl(fields.url);
  if (url === null || !['http:', 'https:'].includes(url.protocol) || url.username !== '' || url.password !== '') {
    throw new TypeError("'url' must be one such as https://inventory.example/devices, without a user");
  }
  url.hash = '';
  return url.href;
}

function parseUrl(text) {
  try {
    return new URL(text);
  } catch {
    return null;
  }
}

// Returns the key of what this token may see, without the token in it.
export async function cacheKey(url, token) {
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(`${url}\0${token}`));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

// Returns ids and properties of the devices in an inventory: a list of {"id": ..., "properties": {...}}.
export function parseDevices(body) {
  const entries = JSON.parse(body);
  if (!Array.isArray(entries) || entries.length > MAX_DEVICES) {
    throw new TypeError(`the inventory is no list of at most ${MAX_DEVICES} devices`);
  }
  const devices = entries.map(device);
  if (new Set(devices.map(({ id }) => id)).size < devices.length) {
    throw new TypeError('two devices have one id');
  }
  return devices;
}

function device(entry) {
  const { id, properties = {}, ...others } = isMapping(entry) ? entry : {};
  if (typeof id !== 'string' || id === '' || Object.keys(others).length > 0) {
    throw new TypeError(`this is no device with an id: ${JSON.stringify(entry).slice(0, 80)}`);
  }
  if (!isMapping(properties) || !Object.values(properties).every((value) => typeof value === 'string')) {
    throw new TypeError(`the properties of '${id}' are no texts`);
  }
  return { id, properties: Object.entries(properties).sort(([a], [b]) => (a < b ? -1 : 1)) };
}

function isMapping(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
