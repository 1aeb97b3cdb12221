import assert from 'node:assert';
import test from 'node:test';

import { cacheKey, parseDetails, parseDevices } from './inventory.js';

test('the url is read', () => {
  assert.strictEqual(parseDetails('{"url": "https://a.example/x?y#z"}'), 'https://a.example/x?y');
});

test('other details are refused', () => {
  const wrong = ['[]', 'null', '{}', '{"url": 5}', '{"url": "a"}', '{"url": "ftp://a/"}', '{"url": "http://u:p@a/"}'];
  for (const details of [undefined, ...wrong, '{"url": "http://a/", "x": 1}']) {
    assert.throws(() => parseDetails(details), TypeError, details);
  }
});

test('devices are read', () => {
  const body = '[{"id": "b", "properties": {"Z": "1", "A": "2"}}, {"id": "a"}]';
  assert.deepStrictEqual(parseDevices(body), [
    { id: 'b', properties: [['A', '2'], ['Z', '1']] },
    { id: 'a', properties: [] },
  ]);
});

test('other inventories are refused', () => {
  for (const body of ['', '{}', '[1]', '[null]', '[{"id": ""}]', '[{"id": "a", "x": 1}]']) {
    assert.throws(() => parseDevices(body), Error, body);
  }
  for (const properties of ['{"A": 1}', '["A"]', 'null']) {
    assert.throws(() => parseDevices(`[{"id": "a", "properties": ${properties}}]`), /are no texts/, properties);
  }
  assert.throws(() => parseDevices('[{"id": "a"}, {"id": "a", "properties": {"A": "1"}}]'), /one id/);
  const many = Array.from({ length: 1001 }, (_, number) => ({ id: String(number) }));
  assert.throws(() => parseDevices(JSON.stringify(many)), /at most/);
  assert.strictEqual(parseDevices(JSON.stringify(many.slice(1))).length, 1000);
});

test('each token has a key of its own', async () => {
  const keys = [];
  for (const url of ['http://a/', 'http://b/']) {
    for (const token of ['', 's3cret', 'other']) keys.push(await cacheKey(url, token));
  }
  assert.strictEqual(new Set(keys).size, keys.length);
  assert.ok(!keys.some((key) => key.includes('s3cret')));
});
