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

fn asked() -> Conversation {
    after(&[acknowledge(8192), opened("None", 1)])
}

#[test]
fn hello_says_what_we_accept_and_whom_we_mean() {
    let (_, hello) = Conversation::begin(Question::FindServers, "opc.tcp://plc:4840/".into(), UNIX_EPOCH);
    let mut reader = Reader::new(&hello);
    assert_eq!((reader.take(4), reader.u32()), (Ok(b"HELF".as_slice()), Ok(hello.len() as u32)));
    let numbers: Vec<u32> = (0..5).map(|_| reader.u32().unwrap()).collect();
    assert_eq!(numbers, [0, 65_536, 65_536, 1 << 20, 256]);
    assert_eq!((reader.string(), reader.rest()), (Ok("opc.tcp://plc:4840/".into()), b"".as_slice()));
}

#[test]
fn what_we_send_is_in_the_channel_that_was_opened() {
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
fn a_server_that_refuses_is_quoted() {
    let busy = || refuse(0x807d_0000, "try later\n");
    let reason = "try later\u{fffd}".to_owned();
    let expected = Error::Refused(Refusal { status: Status(0x807d_0000), reason });
    for mut conversation in [begin(), after(&[acknowledge(8192)]), asked()] {
        assert_eq!(conversation.receive(&busy()), Err(expected.clone()));
    }
    assert_eq!(expected.to_string(), "it answers BadTcpServerTooBusy: try later\u{fffd}");
    let silent = begin().receive(&refuse(0x800e_0000, "")).unwrap_err();
    assert_eq!(silent.to_string(), "it answers BadServerHalted");
    let given_up = [chunk(b'C', HERE, b"abc"), chunk(b'A', HERE, &busy()[8..])].concat();
    assert_eq!(asked().receive(&given_up), Err(expected));
    let Err(Error::Refused(Refusal { reason, .. })) = begin().receive(&refuse(1, &"é".repeat(5000))) else {
        panic!("no error")
    };
    assert_eq!(reason.chars().count(), 200);
    assert!(matches!(begin().receive(&chunk::write(*b"ERR", b"")), Err(Error::Message(_))));
}

#[test]
fn each_message_has_its_turn() {
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
        (asked(), opened("None", 1)),
        (asked(), [message(), message()].concat()),
        (after(&[acknowledge(8192)]), in_parts),
    ] {
        assert_eq!(conversation.receive(&bytes), Err(Error::OutOfTurn));
    }
}

#[test]
fn a_channel_is_the_one_that_was_asked_for() {
    let mut opening = after(&[acknowledge(8192)]);
    let other = "http://opcfoundation.org/UA/SecurityPolicy#Basic256".to_owned();
    assert_eq!(opening.clone().receive(&opened("Basic256", 1)), Err(Error::Policy(other)));
    assert_eq!(opening.clone().receive(&opened("None", 5)), Err(Error::Foreign("request")));
    assert!(matches!(opening.receive(&chunk::write(*b"OPN", b"\0\0\0\0")), Err(Error::Message(_))));
    assert_eq!(begin().receive(&acknowledge(8191)), Err(Error::SmallBuffer(8191)));
    assert!(matches!(begin().receive(&chunk::write(*b"ACK", b"\0\0\0\0")), Err(Error::Message(_))));
}

#[test]
fn chunks_for_others_are_no_answer() {
    for (to, what) in [
        ([8, TOKEN, 2], "channel"),
        ([CHANNEL, 8, 2], "token"),
        ([CHANNEL, TOKEN, 1], "request"),
        ([0, 0, 2], "channel"),
    ] {
        assert_eq!(asked().receive(&chunk(b'F', to, b"")), Err(Error::Foreign(what)));
        assert_eq!(asked().receive(&chunk(b'A', to, b"")), Err(Error::Foreign(what)));
    }
    assert!(matches!(asked().receive(&chunk::write(*b"MSG", b"abc")), Err(Error::Message(_))));
}

#[test]
fn a_response_without_end_ends() {
    let mut conversation = asked();
    let empty = chunk(b'C', HERE, b"");
    for _ in 0..MAX_CHUNKS {
        assert_eq!(conversation.receive(&empty), Ok(Step::Read));
    }
    let error = conversation.receive(&empty).unwrap_err();
    assert_eq!(error.to_string(), "its response has more than 256 chunks");

    let mut conversation = asked();
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
fn what_is_no_opc_ua_is_shown() {
    let error = begin().receive(b"HTTP/1.1 400 Bad Request\r\n").unwrap_err();
    assert_eq!(error.to_string(), r#"what came is no OPC UA: it begins with "HTTP/1.1""#);
    let error = asked().receive(b"MSGC\xff\xff\xff\xff").unwrap_err();
    assert_eq!(error.to_string(), "it sent a chunk of 4294967295 bytes (at most 65536)");
}

proptest! {
    #[test]
    fn a_response_may_come_in_whatever_pieces(size in 1..20_000usize, piece in 1..40usize, cut in 1..200usize) {
        let response = [one_endpoint("urn:a"), vec![7; size]].concat();
        let mut parts = response.chunks(size.div_ceil(cut).max(100)).peekable();
        let mut stream = Vec::new();
        while let Some(part) = parts.next() {
            stream.extend(chunk(if parts.peek().is_some() { b'C' } else { b'F' }, HERE, part));
        }
        let mut conversation = asked();
        let mut last = Step::Read;
        for piece in stream.chunks(piece) {
            prop_assert_eq!(&last, &Step::Read, "nothing before the end");
            last = conversation.receive(piece).unwrap();
        }
        let Step::Done { response: got, .. } = last else { return Err(TestCaseError::fail("no end")) };
        prop_assert_eq!(got, response);
    }

    #[test]
    fn no_bytes_end_a_conversation_badly(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..99), 0..4), kind in 0..4usize) {
        let kind = [*b"ACK", *b"ERR", *b"OPN", *b"MSG"][kind];
        for mut conversation in [begin(), after(&[acknowledge(8192)]), asked()] {
            let _ = pieces.iter().try_for_each(|piece| conversation.receive(&chunk::write(kind, piece)).map(|_| ()));
        }
    }
}
