import unittest

import ssdp

RENDERER = "urn:schemas-upnp-org:device:MediaRenderer:1"


def answer(**changed: str) -> bytes:
    headers = {
        "ST": RENDERER,
        "USN": f"uuid:1::{RENDERER}",
        "Location": "http://192.0.2.7:1400/device.xml",
        "SERVER": "Linux UPnP/1.0 Speaker/7",
    }
    lines = [f"{name}: {value}\r\n" for name, value in (headers | changed).items()]
    return ("HTTP/1.1 200 OK\r\n" + "".join(lines) + "\r\n").encode()


def parse(payload: bytes) -> ssdp.Answer | None:
    return ssdp.parse_answer(payload, "192.0.2.7", RENDERER)


class Details(unittest.TestCase):
    def test_target_is_read(self):
        self.assertEqual(ssdp.parse_details(f'{{"searchTarget": "{RENDERER}"}}'), RENDERER)
        self.assertEqual(ssdp.parse_details("{}"), "upnp:rootdevice")

    def test_other_details_are_refused(self):
        for target in ["", "urn:x", "ssdp:all", f"{RENDERER}\\r\\nX: y", f"{RENDERER} "]:
            with self.assertRaisesRegex(ValueError, "searchTarget", msg=target):
                ssdp.parse_details(f'{{"searchTarget": "{target}"}}')
        for details in [None, "[]", '{"searchTarget": 5}', '{"target": "a"}']:
            with self.assertRaises(ValueError, msg=details):
                ssdp.parse_details(details)


class Answers(unittest.TestCase):
    def test_answer_is_read(self):
        expected = ssdp.Answer("uuid:1", "192.0.2.7", "http://192.0.2.7:1400/device.xml", "Linux UPnP/1.0 Speaker/7")
        self.assertEqual(parse(answer()), expected)

    def test_other_datagrams_are_ignored(self):
        search = ssdp.search(RENDERER)
        for payload in [b"", b"\xff\xfe", search, answer(ST="upnp:rootdevice"), answer(USN="1"), answer(USN="uuid:a b")]:
            self.assertIsNone(parse(payload), payload)

    def test_answer_for_somebody_else_is_refused(self):
        for location in [
            "", "http://", "http://192.0.2.8/", "ftp://192.0.2.7/", "http://[", "http://a@192.0.2.7/", "http://192.0.2.7/a\nb",
            "http://192.0.2.7/" + "x" * 600,
        ]:
            chosen, notes = choose(parse(answer(Location=location)))
            self.assertEqual((len(chosen), len(notes)), (0, 1), location)

    def test_device_with_two_addresses_is_one(self):
        first, second = parse(answer()), at("192.0.2.9", "1")
        self.assertEqual(choose(second, first), ([first], [("192.0.2.9", "uuid:1 is at 192.0.2.7, too")]))

    def test_one_address_hides_no_other(self):
        others = (at("192.0.2.9", f"0{number}") for number in range(300))
        chosen, notes = choose(*others, parse(answer()))
        self.assertEqual((len(chosen), notes), (17, [("192.0.2.9", "more than 16 devices")]))

    def test_too_many_devices_are_an_error(self):
        with self.assertRaises(OverflowError):
            choose(*(at(f"192.0.{number // 200}.{number % 200}", str(number)) for number in range(300)))
        with self.assertRaises(OverflowError):
            choose(*(at(f"192.0.2.{number % 20}", str(number)) for number in range(300)))


def at(address: str, device: str) -> ssdp.Answer:
    payload = answer(USN=f"uuid:{device}", Location=f"http://{address}/")
    return ssdp.parse_answer(payload, address, RENDERER)


def choose(*received: ssdp.Answer):
    answers = ssdp.Answers()
    for each in received:
        answers.add(each)
    return answers.choose()


if __name__ == "__main__":
    unittest.main()
