//! Fuzzes messages of an OPC UA server, as they come and as the response of an open channel: a conversation continues,
//! ends with a response within its bounds, or with an error; and no more is read of a response than it has.
#![no_main]

use std::time::UNIX_EPOCH;

use libfuzzer_sys::fuzz_target;
use opcua::binary::Writer;
use opcua::chunk;
use opcua::conversation::{Conversation, Step};
use opcua::message::{self, Question};

fuzz_target!(|pieces: Vec<Vec<u8>>| {
    for question in [Question::FindServers, Question::GetEndpoints] {
        let raw = pieces.iter().cloned();
        converse(question, raw);
        let response = pieces.iter().map(|piece| chunk::write(*b"MSG", &in_channel(piece)));
        converse(question, [acknowledge(), open()].into_iter().chain(response));
    }
    let response = pieces.concat();
    let _ = message::read_token(&response);
    if let Ok(applications) = message::read_applications(&response) {
        assert!(applications.len() * 25 <= response.len());
    }
    if let Ok(endpoints) = message::read_endpoints(&response) {
        assert!(endpoints.len() * 50 <= response.len());
    }
});

fn converse(question: Question, mut pieces: impl Iterator<Item = Vec<u8>>) {
    let (mut conversation, _) = Conversation::begin(question, "opc.tcp://a".to_owned(), UNIX_EPOCH);
    let end = pieces.find_map(|piece| match conversation.receive(&piece) {
        Ok(Step::Read | Step::Send(_)) => None,
        Ok(Step::Done { response, .. }) => Some(response.len() <= question.max_response() as usize),
        Err(error) => Some(error.to_string().len() < 1000),
    });
    assert_ne!(end, Some(false));
}

fn acknowledge() -> Vec<u8> {
    let mut body = Writer::default();
    body.u32(0).u32(65_536).u32(65_536).u32(0).u32(0);
    chunk::write(*b"ACK", &body.into_bytes())
}

/// Channel 0 with token 0.
fn open() -> Vec<u8> {
    let mut body = Writer::default();
    body.u32(0).string("http://opcfoundation.org/UA/SecurityPolicy#None").null().null();
    body.u32(1).u32(1).node_id(449).raw(&[0; 24]).u32(0).u32(0).u32(0).raw(&[0; 16]);
    chunk::write(*b"OPN", &body.into_bytes())
}

fn in_channel(piece: &[u8]) -> Vec<u8> {
    let mut body = Writer::default();
    body.u32(0).u32(0).u32(2).u32(2).raw(piece);
    body.into_bytes()
}
