// The discovery handler `http-inventory`: devices that an inventory lists by HTTP.

import { delete as forget, get as recall, set as remember } from 'akri:discovery/cache@0.1.0';
import { detailsJson } from 'akri:discovery/round@0.1.0';
import { get as secret } from 'akri:discovery/secrets@0.1.0';

import { cacheKey, parseDetails, parseDevices } from './inventory.js';

// The name of the property with the token, from a Secret.
const TOKEN = 'token';

export const handler = {
  describe() {
    return { name: 'http-inventory', version: '0.1.0', shared: true, hints: [['interval-ms', '60000']] };
  },

  validate() {
    readDetails((problems) => problems);
    return [];
  },

  async discover() {
    const url = readDetails((problems) => ({ tag: 'invalid-details', val: problems }));
    const body = await inventory(url);
    return devices(body).map(({ id, properties }) => (
      { id, origin: '', properties, mounts: [], deviceSpecs: [], hints: [] }
    ));
  },
};

// Returns the URL in the details. An error of the contract is a value that is thrown.
function readDetails(refusal) {
  try {
    return parseDetails(detailsJson());
  } catch (error) {
    throw refusal([{ path: '', reason: 'InvalidDetails', message: error.message }]);
  }
}

function unavailable(message) {
  return { tag: 'unavailable', val: message };
}

function devices(body) {
  try {
    return parseDevices(body);
  } catch (error) {
    // What was published stays: a broken inventory is not an empty one.
    throw unavailable(`the inventory is malformed: ${error.message}`);
  }
}

// Returns the inventory, from the cache if the server says that it has not changed.
async function inventory(url) {
  const token = readToken();
  const key = await cacheKey(url, token);
  const known = JSON.parse(decode(recall(key)) || 'null');
  const response = await request(url, token, known?.etag);
  if (response.status === 304 && known !== null) return known.body;
  if (response.status !== 200) {
    const why = [401, 403].includes(response.status) ? " (is the property 'token' right?)" : '';
    throw unavailable(`the inventory answers with status ${response.status}${why}`);
  }
  const body = await read(response);
  const etag = response.headers.get('etag');
  if (etag) keep(key, { etag, body });
  return body;
}

function readToken() {
  try {
    return decode(secret(TOKEN)?.reveal()).trim();
  } catch (error) {
    // An error of a function of the host is in the payload of what is thrown.
    throw { tag: 'not-granted', val: String(error.payload?.val ?? error) };
  }
}

async function request(url, token, etag) {
  const headers = { accept: 'application/json' };
  if (token !== '') headers.authorization = `Bearer ${token}`;
  if (etag !== undefined) headers['if-none-match'] = etag;
  try {
    return await fetch(url, { headers });
  } catch {
    // `fetch` does not say why. What was refused is in the status of the Configuration, and `akri handler run` prints it.
    throw unavailable('the inventory was not reached: it does not answer, or grants.http or grants.names do not allow it');
  }
}

async function read(response) {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(await response.arrayBuffer());
  } catch {
    throw unavailable("the inventory's answer is cut, too long, or no UTF-8");
  }
}

function keep(key, known) {
  try {
    remember(key, new TextEncoder().encode(JSON.stringify(known)));
  } catch {
    forget(key); // it does not fit: it is fetched whole in each round
  }
}

function decode(bytes) {
  return new TextDecoder().decode(bytes ?? new Uint8Array());
}
