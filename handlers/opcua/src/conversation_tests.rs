use std::time::UNIX_EPOCH;

use proptest::prelude::*;

use super::*;
use crate::fixture::{CHANNEL, TOKEN, acknowledge, chunk, one_endpoint, opened, refuse};

const HERE: [u32; 3] = [CHANNEL, TOKEN, QUESTION_REQUEST];

fn begin() -> Conversation {
    Conversation::begin(Question::GetEndpoints, "opc.tcp://plc:4840/".into(), UNIX_EPOCH).0
}

/// A conversation in which these were received.
fn after(received: &[Vec<u8>]) -> Conversation {
    let mut conversation = begin();
    received.iter().for_each(|bytes| assert!(matches!(conversation.receive(bytes), Ok(Step::Send(_)))));
    conversation
}

fn awaiting_response() -> Conversation {
    after(&[acknowledge(8192), opened("None", 1)])
}

#[test]
fn hello_states_our_limits_and_the_endpoint() {
    let (_, hello) = Conversation::begin(Question::FindServers, "opc.tcp://plc:4840/".into(), UNIX_EPOCH);
    let mut reader = Reader::new(&hello);
    assert_eq!((reader.take(4), reader.u32()), (Ok(b"HELF".as_slice()), Ok(hello.len() as u32)));
    let numbers: Vec<u32> = (0..5).map(|_| reader.u32().unwrap()).collect();
    assert_eq!(numbers, [0, 65_536, 65_536, 1 << 20, 256]);
    assert_eq!((reader.string(), reader.rest()), (Ok("opc.tcp://plc:4840/".into()), b"".as_slice()));
}

#[test]
fn requests_use_the_opened_channel() {
    let mut conversation = after(&[acknowledge(8192)]);
    let Ok(Step::Send(request)) = conversation.receive(&opened("None", 1)) else { panic!("no request") };
    let mut reader = Reader::new(&request);
    assert_eq!(reader.take(4), Ok(b"MSGF".as_slice()));
    let numbers: Vec<u32> = (0..5).map(|_| reader.u32().unwrap()).collect();
    assert_eq!(numbers, [request.len() as u32, CHANNEL, TOKEN, 2, 2]);
    assert_eq!(reader.rest(), Question::GetEndpoints.request("opc.tcp://plc:4840/", UNIX_EPOCH));

    let Ok(Step::Done { farewell, .. }) = conversation.receive(&chunk(b'F', HERE, b"")) else { panic!("no end") };
    let mut reader = Reader::new(&farewell);
    assert_eq!(reader.take(4), Ok(b"CLOF".as_slice()));
    let numbers: Vec<u32> = (0..5).map(|_| reader.u32().unwrap()).collect();
    assert_eq!(numbers, [farewell.len() as u32, CHANNEL, TOKEN, 3, 3]);
}

#[test]
fn server_error_is_quoted() {
    let busy = || refuse(0x807d_0000, "try later\n");
    let reason = "try later\u{fffd}".to_owned();
    let expected = Error::Refused(Refusal { status: Status(0x807d_0000), reason });
    for mut conversation in [begin(), after(&[acknowledge(8192)]), awaiting_response()] {
        assert_eq!(conversation.receive(&busy()), Err(expected.clone()));
    }
    assert_eq!(expected.to_string(), "it answers BadTcpServerTooBusy: try later\u{fffd}");
    let silent = begin().receive(&refuse(0x800e_0000, "")).unwrap_err();
    assert_eq!(silent.to_string(), "it answers BadServerHalted");
    let given_up = [chunk(b'C', HERE, b"abc"), chunk(b'A', HERE, &busy()[8..])].concat();
    assert_eq!(awaiting_response().receive(&given_up), Err(expected));
    let Err(Error::Refused(Refusal { reason, .. })) = begin().receive(&refuse(1, &"é".repeat(5000))) else {
        panic!("no error")
    };
    assert_eq!(reason.chars().count(), 200);
    assert!(matches!(begin().receive(&chunk::write(*b"ERR", b"")), Err(Error::Message(_))));
}

#[test]
fn messages_are_exchanged_in_order() {
    let message = || chunk(b'F', HERE, b"");
    let mut in_parts = opened("None", 1);
    in_parts[3] = b'C';
    for (mut conversation, bytes) in [
        (begin(), opened("None", 1)),
        (begin(), message()),
        (begin(), [acknowledge(8192), opened("None", 1)].concat()),
        (begin(), [acknowledge(8192), b"O".to_vec()].concat()),
        (after(&[acknowledge(8192)]), acknowledge(8192)),
        (after(&[acknowledge(8192)]), message()),
        (awaiting_response(), opened("None", 1)),
        (awaiting_response(), [message(), message()].concat()),
        (after(&[acknowledge(8192)]), in_parts),
    ] {
        assert_eq!(conversation.receive(&bytes), Err(Error::UnexpectedChunk));
    }
}

#[test]
fn channel_matches_the_requested_one() {
    let mut opening = after(&[acknowledge(8192)]);
    let other = "http://opcfoundation.org/UA/SecurityPolicy#Basic256".to_owned();
    assert_eq!(opening.clone().receive(&opened("Basic256", 1)), Err(Error::Policy(other)));
    assert_eq!(opening.clone().receive(&opened("None", 5)), Err(Error::Foreign("request")));
    assert!(matches!(opening.receive(&chunk::write(*b"OPN", b"\0\0\0\0")), Err(Error::Message(_))));
    assert_eq!(begin().receive(&acknowledge(8191)), Err(Error::SmallBuffer(8191)));
    assert!(matches!(begin().receive(&chunk::write(*b"ACK", b"\0\0\0\0")), Err(Error::Message(_))));
}

#[test]
fn chunks_of_other_requests_are_refused() {
    for (to, what) in [
        ([8, TOKEN, 2], "channel"),
        ([CHANNEL, 8, 2], "token"),
        ([CHANNEL, TOKEN, 1], "request"),
        ([0, 0, 2], "channel"),
    ] {
        assert_eq!(awaiting_response().receive(&chunk(b'F', to, b"")), Err(Error::Foreign(what)));
        assert_eq!(awaiting_response().receive(&chunk(b'A', to, b"")), Err(Error::Foreign(what)));
    }
    assert!(matches!(awaiting_response().receive(&chunk::write(*b"MSG", b"abc")), Err(Error::Message(_))));
}

#[test]
fn endless_response_is_cut_off() {
    let mut conversation = awaiting_response();
    let empty = chunk(b'C', HERE, b"");
    for _ in 0..MAX_CHUNKS {
        assert_eq!(conversation.receive(&empty), Ok(Step::Read));
    }
    let error = conversation.receive(&empty).unwrap_err();
    assert_eq!(error.to_string(), "its response has more than 256 chunks");

    let mut conversation = awaiting_response();
    let full = chunk(b'C', HERE, &[0; 65_512]);
    assert_eq!(full.len(), 65_536);
    for _ in 0..8 {
        assert_eq!(conversation.receive(&full), Ok(Step::Read));
        assert!(conversation.response.capacity() <= 524_288, "no memory beyond the bound");
    }
    let error = conversation.receive(&full).unwrap_err();
    assert_eq!(error.to_string(), "its response has more than 524288 bytes");
}

#[test]
fn other_protocols_are_shown_in_the_error() {
    let error = begin().receive(b"HTTP/1.1 400 Bad Request\r\n").unwrap_err();
    assert_eq!(error.to_string(), r#"what came is no OPC UA: it begins with "HTTP/1.1""#);
    let error = awaiting_response().receive(b"MSGC\xff\xff\xff\xff").unwrap_err();
    assert_eq!(error.to_string(), "it sent a chunk of 4294967295 bytes (at most 65536)");
}

proptest! {
    #[test]
    fn response_may_arrive_in_any_pieces(size in 1..20_000usize, piece in 1..40usize, cut in 1..200usize) {
        let response = [one_endpoint("urn:a"), vec![7; size]].concat();
        let mut parts = response.chunks(size.div_ceil(cut).max(100)).peekable();
        let mut stream = Vec::new();
        while let Some(part) = parts.next() {
            stream.extend(chunk(if parts.peek().is_some() { b'C' } else { b'F' }, HERE, part));
        }
        let mut conversation = awaiting_response();
        let mut last = Step::Read;
        for piece in stream.chunks(piece) {
            prop_assert_eq!(&last, &Step::Read, "nothing before the end");
            last = conversation.receive(piece).unwrap();
        }
        let Step::Done { response: got, .. } = last else { return Err(TestCaseError::fail("no end")) };
        prop_assert_eq!(got, response);
    }

    #[test]
    fn arbitrary_bytes_cause_no_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..99), 0..4), kind in 0..4usize) {
        let kind = [*b"ACK", *b"ERR", *b"OPN", *b"MSG"][kind];
        for mut conversation in [begin(), after(&[acknowledge(8192)]), awaiting_response()] {
            let _ = pieces.iter().try_for_each(|piece| conversation.receive(&chunk::write(kind, piece)).map(|_| ()));
        }
    }
}
