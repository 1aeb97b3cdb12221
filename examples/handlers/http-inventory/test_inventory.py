import unittest

import inventory


class Details(unittest.TestCase):
    def test_url_is_read(self):
        self.assertEqual(inventory.parse_details('{"url": "https://a.example/x?y"}'), "https://a.example/x?y")

    def test_other_details_are_refused(self):
        for details in [None, "[]", "{}", '{"url": 5}', '{"url": "a"}', '{"url": "ftp://a/"}', '{"url": "http://u:p@a/"}']:
            with self.assertRaises(ValueError, msg=details):
                inventory.parse_details(details)


class Devices(unittest.TestCase):
    def test_devices_are_read(self):
        body = b'[{"id": "b", "properties": {"Z": "1", "A": "2"}}, {"id": "a"}]'
        self.assertEqual(inventory.parse_devices(body), [("b", [("A", "2"), ("Z", "1")]), ("a", [])])

    def test_other_inventories_are_refused(self):
        for body in [b"", b"{}", b"[1]", b'[{"id": ""}]', b'[{"id": "a", "x": 1}]', b'[{"id": "a", "properties": {"A": 1}}]']:
            with self.assertRaises(ValueError, msg=body):
                inventory.parse_devices(body)
        with self.assertRaisesRegex(ValueError, "one id"):
            inventory.parse_devices(b'[{"id": "a"}, {"id": "a", "properties": {"A": "1"}}]')
        with self.assertRaisesRegex(ValueError, "at most"):
            inventory.parse_devices(b"[" + b'{"id": "a"},' * 1000 + b'{"id": "a"}]')


class CacheKeys(unittest.TestCase):
    def test_each_token_has_its_own(self):
        keys = [inventory.cache_key(url, token) for url in ["http://a/", "http://b/"] for token in [b"", b"s3cret", b"other"]]
        self.assertEqual(len(set(keys)), len(keys))
        self.assertFalse(any("s3cret" in key for key in keys))


if __name__ == "__main__":
    unittest.main()
