//! Responses for unit tests.

use std::net::IpAddr;

use crate::name::Name;

/// Parses a name without dots in labels.
pub(crate) fn name(text: &str) -> Name {
    Name::new(text.split('.').filter(|label| !label.is_empty())).unwrap()
}

/// A response to be sent, without compression.
pub(crate) struct Response {
    questions: u16,
    records: u16,
    body: Vec<u8>,
}

impl Response {
    pub(crate) fn new() -> Self {
        Self { questions: 0, records: 0, body: Vec::new() }
    }

    pub(crate) fn question(mut self, name: &Name) -> Self {
        self.questions += 1;
        name.encode(&mut self.body);
        self.body.extend([0, 12, 0, 1]);
        self
    }

    fn record(mut self, of: &str, kind: u16, seconds: u32, data: &[u8]) -> Self {
        self.records += 1;
        name(of).encode(&mut self.body);
        self.body.extend(kind.to_be_bytes());
        self.body.extend(0x8001_u16.to_be_bytes());
        self.body.extend(seconds.to_be_bytes());
        self.body.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        self.body.extend(data);
        self
    }

    pub(crate) fn pointer(self, of: &str, to: &str, seconds: u32) -> Self {
        let mut data = Vec::new();
        name(to).encode(&mut data);
        self.record(of, 12, seconds, &data)
    }

    pub(crate) fn service(self, of: &str, port: u16, host: &str, seconds: u32) -> Self {
        let mut data = vec![0; 4];
        data.extend(port.to_be_bytes());
        name(host).encode(&mut data);
        self.record(of, 33, seconds, &data)
    }

    pub(crate) fn text(self, of: &str, strings: &[&[u8]], seconds: u32) -> Self {
        let length = |string: &[u8]| u8::try_from(string.len()).unwrap();
        let data: Vec<u8> = strings.iter().flat_map(|string| [&[length(string)], *string].concat()).collect();
        self.record(of, 16, seconds, &data)
    }

    pub(crate) fn address(self, of: &str, address: &str, seconds: u32) -> Self {
        match address.parse().unwrap() {
            IpAddr::V4(address) => self.record(of, 1, seconds, &address.octets()),
            IpAddr::V6(address) => self.record(of, 28, seconds, &address.octets()),
        }
    }

    pub(crate) fn other(self, of: &str, kind: u16) -> Self {
        self.record(of, kind, 120, &[1, 2, 3])
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        let [questions, records] = [self.questions, self.records].map(u16::to_be_bytes);
        [&[0, 0, 0x84, 0][..], &questions, &records, &[0; 4], &self.body].concat()
    }
}
