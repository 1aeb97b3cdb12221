use proptest::prelude::*;

use super::*;
use crate::fixture::{Response, name};
use crate::name::MAX_NAME;

/// A response with one record of type `PTR` whose name are these bytes.
fn with_name(bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![0, 0, 0x84, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    message.extend(bytes);
    message.extend([0, 12, 0, 1, 0, 0, 0, 120, 0, 3, 1, b'x', 0]);
    message
}

#[test]
fn records_of_a_response_are_read() {
    let ipp = name("_ipp._tcp.local");
    let message = Response::new()
        .question(&ipp)
        .pointer("_ipp._tcp.local", "Hall._ipp._tcp.local", 4500)
        .service("Hall._ipp._tcp.local", 631, "hall.local", 120)
        .text("Hall._ipp._tcp.local", &[b"ty=Laser", b"duplex"], 4500)
        .address("hall.local", "192.0.2.7", 120)
        .address("hall.local", "2001:db8::7", 0)
        .other("hall.local", 47)
        .bytes();
    let records = read(&message).unwrap();
    let expected = [
        (ipp, true, Data::Pointer(name("hall._IPP._tcp.local"))),
        (name("Hall._ipp._tcp.local"), true, Data::Service { port: 631, host: name("hall.local") }),
        (name("Hall._ipp._tcp.local"), true, Data::Text(b"\x08ty=Laser\x06duplex".to_vec())),
        (name("hall.local"), true, Data::Address("192.0.2.7".parse().unwrap())),
        (name("hall.local"), false, Data::Address("2001:db8::7".parse().unwrap())),
    ];
    assert_eq!(records, expected.map(|(name, is_valid, data)| Record { name, is_valid, data }));
}

#[test]
fn messages_that_are_no_answers_are_skipped() {
    let mut message = Response::new().pointer("a.local", "b.local", 1).bytes();
    for (flags, count) in [(0x84, 1), (0x80, 1), (0x00, 0), (0x04, 0), (0xf8, 0)] {
        message[2] = flags;
        assert_eq!(read(&message).unwrap().len(), count, "{flags:x}");
    }
    message[2..4].copy_from_slice(&[0x84, 3]);
    assert_eq!(read(&message), Ok(vec![]), "an error");
    let question = query(&[Question { name: name("a.local"), kind: Kind::Pointer }]);
    assert_eq!(read(&question), Ok(vec![]));
}

#[test]
fn compressed_names_are_expanded() {
    let mut message = Response::new().pointer("_ipp._tcp.local", "hall._ipp._tcp.local", 9).bytes();
    message[7] = 2; // a further record, whose name is "x" and the tail of the first
    message.extend([1, b'x', 0xc0, 12, 0, 1, 0x80, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 1]);
    let records = read(&message).unwrap();
    assert_eq!(records[1].name, name("x._ipp._tcp.local"));
}

#[test]
fn malformed_names_are_refused() {
    for (bytes, error) in [
        (&[0xc0, 12][..], MessageError::Name),       // itself
        (&[1, b'a', 0xc0, 12], MessageError::Name),  // a circle
        (&[0xc0, 14, 0xc0, 12], MessageError::Name), // forward
        (&[0xff, 0xff], MessageError::Name),         // outside
        (&[0x40, 0], MessageError::Name),            // an unknown kind of label
        (&[63, b'a'], MessageError::Truncated),
    ] {
        assert_eq!(read(&with_name(bytes)), Err(error), "{bytes:?}");
    }
    let long = [&[63; 64][..], &[63; 64], &[63; 64], &[63; 64], &[0]].concat();
    assert!(long.len() > MAX_NAME);
    assert_eq!(read(&with_name(&long)), Err(MessageError::Name));
}

#[test]
fn pointers_of_a_name_are_bounded() {
    // The root at 12, and each further name is a pointer to the one before.
    let chain = |length: u16| {
        let targets = std::iter::once(12).chain((0..length - 1).map(|hop| 13 + 2 * hop));
        let pointers = targets.flat_map(|target| (0xc000 | target).to_be_bytes());
        [vec![0; HEADER_BYTES + 1], pointers.collect()].concat()
    };
    for (length, is_name) in [(1, true), (16, true), (17, false), (400, false)] {
        let message = chain(length);
        let mut reader = Reader { message: &message, at: message.len() - 2 };
        assert_eq!(reader.name().is_ok(), is_name, "{length}");
    }
}

#[test]
fn malformed_records_are_refused() {
    let address = Response::new().address("a.local", "192.0.2.1", 1).bytes();
    for length in 0..address.len() {
        assert_eq!(read(&address[..length]), Err(MessageError::Truncated), "{length}");
    }
    let mut long = address.clone();
    let at = long.len() - 5;
    long[at] = 5;
    long.push(0);
    assert_eq!(read(&long), Err(MessageError::Record));
    let mut many = address;
    many[6..8].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(read(&many), Err(MessageError::TooMany));
}

#[test]
fn questions_are_spread_over_messages() {
    let question =
        |number: usize| Question { name: name(&format!("printer-{number:04}._ipp._tcp.local")), kind: Kind::Service };
    let all: Vec<Question> = (0..200).map(question).collect();
    let messages: Vec<Vec<u8>> = packed(all.clone()).iter().map(|questions| query(questions)).collect();
    assert!(messages.len() > 1 && messages.iter().all(|message| message.len() <= QUERY_BYTES));
    let counts: u16 = messages.iter().map(|message| u16::from_be_bytes([message[4], message[5]])).sum();
    assert_eq!(counts, 200);
    let mut reader = Reader { message: &messages[0], at: HEADER_BYTES };
    assert_eq!(reader.name(), Ok(all[0].name.clone()));
    assert_eq!(reader.array(), Ok([0, 33, 0, 1]));
    assert_eq!(packed([]), Vec::<Vec<Question>>::new());
    let long = Question { name: Name::new([[b'x'; 63]; 3]).unwrap(), kind: Kind::Service };
    assert_eq!(packed([long.clone(), long.clone()]), [vec![long.clone()], vec![long]]);
}

proptest! {
    #[test]
    fn any_bytes_are_read_within_bounds(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), is_response: bool) {
        if let (true, Some(flags)) = (is_response, bytes.get_mut(2..4)) {
            flags.copy_from_slice(&[0x84, 0]);
        }
        for record in read(&bytes).into_iter().flatten() {
            prop_assert!(record.name.encoded_len() <= MAX_NAME);
        }
    }

    #[test]
    fn damaged_responses_are_read_within_bounds(damage in proptest::collection::vec((0_usize..200, any::<u8>()), 1..4)) {
        let mut message = Response::new()
            .pointer("_ipp._tcp.local", "Hall._ipp._tcp.local", 4500)
            .service("Hall._ipp._tcp.local", 631, "hall.local", 120)
            .text("Hall._ipp._tcp.local", &[b"ty=Laser"], 4500)
            .address("hall.local", "192.0.2.7", 120)
            .bytes();
        for (at, byte) in damage {
            let at = at % message.len();
            message[at] = byte;
        }
        for record in read(&message).into_iter().flatten() {
            prop_assert!(record.name.encoded_len() <= MAX_NAME);
        }
    }

    #[test]
    fn names_survive_a_message(labels in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..=63), 0..3)) {
        let name = Name::new(labels).unwrap();
        let mut message = vec![0; HEADER_BYTES];
        name.encode(&mut message);
        let mut reader = Reader { message: &message, at: HEADER_BYTES };
        prop_assert_eq!(reader.name().unwrap().to_string(), name.to_string());
    }
}
