use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::Response;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use loona_hpack::{Decoder, Encoder};
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::*;

/// A peer whose bytes arrive in the given pieces.
struct Pieces(VecDeque<Vec<u8>>);

impl AsyncRead for Pieces {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(mut piece) = self.0.pop_front() {
            let rest = piece.split_off(piece.len().min(buf.remaining()));
            buf.put_slice(&piece);
            if !rest.is_empty() {
                self.0.push_front(rest);
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Filters a connection beside which there are no others.
fn alone<S>(connection: S) -> Filter<S> {
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    Filter::new(connection, permit, oneshot::channel().1)
}

fn filter_pieces(pieces: Vec<Vec<u8>>) -> io::Result<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut out = Vec::new();
        alone(Pieces(pieces.into())).read_to_end(&mut out).await?;
        Ok(out)
    })
}

fn filter(bytes: &[u8]) -> io::Result<Vec<u8>> {
    filter_pieces(vec![bytes.to_vec()])
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the frames after the preface: type, flags, stream, payload.
fn frames(bytes: &[u8]) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let mut rest = bytes.strip_prefix(PREFACE).expect("the preface comes first");
    let mut all = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
        let stream = u32::from_be_bytes([rest[5], rest[6], rest[7], rest[8]]);
        all.push((rest[3], rest[4], stream, rest[9..9 + length].to_vec()));
        rest = &rest[9 + length..];
    }
    all
}

type Header = (Vec<u8>, Vec<u8>);

fn request(authority: &str) -> Vec<Header> {
    [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1beta1.DevicePlugin/Allocate"),
        (":authority", authority),
        ("content-type", "application/grpc"),
    ]
    .map(|(name, value)| (name.into(), value.into()))
    .to_vec()
}

fn encode(encoder: &mut Encoder<'_>, headers: &[Header]) -> Vec<u8> {
    encoder.encode(headers.iter().map(|(name, value)| (name.as_slice(), value.as_slice())))
}

/// The headers behind the filter, decoded frame by frame with a decoder of their own.
fn headers(bytes: &[u8]) -> Vec<Vec<Header>> {
    let mut decoder = Decoder::new();
    let blocks = frames(bytes).into_iter().filter(|frame| frame.0 == 1);
    blocks.map(|frame| decoder.decode(&frame.3).unwrap()).collect()
}

/// A connection with two requests, data, settings and a ping.
fn connection(authority: &str) -> Vec<u8> {
    let mut encoder = Encoder::new();
    let first = encode(&mut encoder, &request(authority));
    let second = encode(&mut encoder, &request(authority));
    [
        PREFACE.to_vec(),
        frame(4, 0, 0, &[0, 4, 0, 0, 255, 255]),
        frame(1, END_HEADERS, 1, &first),
        frame(0, 1, 1, b"\0\0\0\0\x03\x0a\x01x"),
        frame(6, 0, 0, b"pingping"),
        frame(1, END_HEADERS, 3, &second),
        frame(0, 1, 3, b""),
    ]
    .concat()
}

const END_HEADERS: u8 = 4;

#[test] // rule 1
fn authority_becomes_localhost_or_its_beginning() {
    let cases = [
        ("localhost", "localhost"),
        ("127.0.0.1:50051", "localhost"),
        ("tmp%2Fpeers%2Fa.sock", "localhost"),
        ("%2Fvar%2Flib%2Fkubelet%2Fdevice-plugins%2Fakri-1.sock", "localhost"),
        ("/var/lib/kubelet/device-plugins/akri-1.sock", "localhost"),
        ("", "l"),
        ("a b", "loc"),
        ("\u{1}", "l"),
    ];
    for (sent, seen) in cases {
        let out = filter(&connection(sent)).unwrap();
        assert_eq!(headers(&out), [request(seen), request(seen)], "sent {sent:?}");
    }
}

#[test] // rule 1
fn other_frames_pass_byte_for_byte() {
    let sent = connection("%2Fa.sock");
    let unchanged = |bytes: &[u8]| -> Vec<_> { frames(bytes).into_iter().filter(|frame| frame.0 != 1).collect() };
    assert_eq!(unchanged(&filter(&sent).unwrap()), unchanged(&sent));
}

#[test]
fn read_boundaries_make_no_difference() {
    let sent = connection("tmp%2Fa.sock");
    let filtered = filter(&sent).unwrap();
    for at in 0..sent.len() {
        let (head, tail) = sent.split_at(at);
        assert_eq!(
            filter_pieces(vec![head.to_vec(), tail.to_vec()].split_off(usize::from(at == 0))).unwrap(),
            filtered
        );
    }
    for size in 1..sent.len() {
        assert_eq!(
            filter_pieces(sent.chunks(size).map(<[u8]>::to_vec).collect()).unwrap(),
            filtered,
            "pieces of {size}"
        );
    }
}

#[test]
fn huffman_and_the_dynamic_table_are_decoded() {
    // RFC 7541, C.4: three requests of one connection, the later ones refer to what the first one left in the table.
    let blocks: [&[u8]; 3] = [
        &[0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff],
        &[0x82, 0x86, 0x84, 0xbe, 0x58, 0x86, 0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf],
        &[
            0x82, 0x87, 0x85, 0xbf, 0x40, 0x88, 0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f, 0x89, 0x25, 0xa8, 0x49,
            0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf,
        ],
    ];
    let mut sent = PREFACE.to_vec();
    for (block, stream) in blocks.into_iter().zip([1, 3, 5]) {
        sent.extend(frame(1, END_HEADERS, stream, block));
    }
    let seen = headers(&filter(&sent).unwrap());
    let expected: [&[(&str, &str)]; 3] = [
        &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "loc")],
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "loc"),
            ("cache-control", "no-cache"),
        ],
        &[
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            (":authority", "loc"),
            ("custom-key", "custom-value"),
        ],
    ];
    for (seen, expected) in seen.iter().zip(expected) {
        let expected: Vec<Header> = expected.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        assert_eq!(*seen, expected);
    }
    assert_eq!(seen.len(), 3);
}

#[test]
fn table_size_update_is_followed() {
    let mut encoder = Encoder::new();
    let first = encode(&mut encoder, &request("a"));
    // Size 0 empties the table, size 4096 opens it again; what comes then is encoded with an empty table.
    let second = [&[0x20, 0x3f, 0xe1, 0x1f], &encode(&mut Encoder::new(), &request("b"))[..]].concat();
    let sent = [PREFACE, &frame(1, END_HEADERS, 1, &first), &frame(1, END_HEADERS, 3, &second)].concat();
    assert_eq!(headers(&filter(&sent).unwrap()), [request("l"), request("l")]);
}

#[test] // rule 1
fn malformed_fields_pass_to_who_refuses_them() {
    let well_formed: &[u8] = &[0x41, 0x02, b'/', b'a'];
    for malformed in [
        &[0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01][..], // an integer without an end
        &[0x41, 0x7f, 0xff, 0xff, 0x03],                 // a string longer than the block
        &[0x00, 0x84, 0xff, 0xff, 0xff],
        &[0x01],
    ] {
        let passed = header_block::with_valid_authority(&[well_formed, malformed, well_formed].concat());
        assert_eq!(passed[4..], [malformed, well_formed].concat(), "{malformed:02x?}");
    }
}

/// Returns how many requests reach a service behind the filter.
fn served(sent: &[u8]) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (mut peer, stream) = tokio::io::duplex(1 << 20);
        peer.write_all(&[sent, &frame(6, 0, 0, b"the end.")].concat()).await.unwrap();
        let answered = async {
            let mut answer = Vec::new();
            while !answer.windows(8).any(|bytes| bytes == b"the end.") && peer.read_buf(&mut answer).await.unwrap() > 0
            {
            }
        };
        let count = Arc::new(AtomicUsize::new(0));
        let requests = Arc::clone(&count);
        let service = service_fn(move |_| {
            requests.fetch_add(1, Ordering::Relaxed);
            ready(Ok::<_, Infallible>(Response::new(String::new())))
        });
        let http2 = http2::Builder::new(TokioExecutor::new());
        let connection = http2.serve_connection(TokioIo::new(alone(stream)), service);
        tokio::select! {
            _ = connection => {} // it was malformed
            () = answered => {}
        }
        count.load(Ordering::Relaxed)
    })
}

#[test] // rule 1
fn server_behind_the_filter_refuses_malformed_headers() {
    assert_eq!(served(&connection("%2Fa.sock")), 2);
    let head = encode(&mut Encoder::new(), &request("/a.sock"));
    // A few bytes on the wire, many megabytes when decoded: one large entry in the table, named again and again.
    let mut large = request("/a.sock");
    large.push((b"x".to_vec(), vec![b'x'; 3000]));
    let bomb = [encode(&mut Encoder::new(), &large), vec![0xbe; 10_000]].concat();
    for (what, block) in [
        ("an index beyond the tables", [&head[..], &[0xff, 0x80, 0x01]].concat()),
        ("a string longer than the block", [&head[..], &[0x00, 0x7f, 0xff, 0xff, 0x03]].concat()),
        ("the end of string symbol", [&head[..], &[0x00, 0x84, 0xff, 0xff, 0xff, 0xff, 0x00]].concat()),
        ("a table beyond its limit", [&[0x3f, 0xe2, 0x1f], &head[..]].concat()),
        ("a block that grows beyond the bound", bomb),
    ] {
        let sent = [PREFACE, &frame(4, 0, 0, b""), &frame(1, END_HEADERS | 1, 1, &block)].concat();
        assert_eq!(served(&sent), 0, "{what}");
    }
    let sent = [PREFACE, &frame(4, 0, 0, b""), &frame(1, END_HEADERS | 1, 1, &head)].concat();
    assert_eq!(served(&sent), 1);
}

#[test] // rule 1
fn authority_is_replaced_in_each_form_of_a_literal() {
    let coded_name = [0x88, 0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
    let name = [&[10], &b":authority"[..]].concat();
    for (form, name) in [(0x41, &[][..]), (0x01, &[]), (0x11, &[]), (0x40, &coded_name), (0x00, &name), (0x10, &name)] {
        for (value, seen) in [(&b"\x02/a"[..], "lo"), (b"\x80", "l"), (b"\x82\x60\xff", "l")] {
            let field = [&[form], name, value].concat();
            let block = header_block::with_valid_authority(&[&[0x83], &field[..], &[0x84]].concat());
            let decoded = Decoder::new().decode(&block).unwrap();
            let expected = [(":method", "POST"), (":authority", seen), (":path", "/")];
            assert_eq!(decoded, expected.map(|(name, value)| (name.into(), value.into())), "{field:02x?}");
        }
    }
}

proptest! {
    #[test] // rule 1
    fn other_fields_are_as_before(fields in vec((vec(any::<u8>(), 1..20), vec(any::<u8>(), 0..200)), 0..20)) {
        let block = encode(&mut Encoder::new(), &fields);
        prop_assert_eq!(Decoder::new().decode(&header_block::with_valid_authority(&block)).unwrap(), fields);
    }

    #[test] // rule 1
    fn any_bytes_keep_about_their_length(bytes in vec(any::<u8>(), 0..500)) {
        let passed = header_block::with_valid_authority(&bytes);
        prop_assert!(passed.len() <= bytes.len() * 2);
    }
}

#[test]
fn padding_is_removed_and_priority_kept() {
    let block = encode(&mut Encoder::new(), &request("%2Fa"));
    let priority = [0, 0, 0, 0, 200];
    let payload = [&[7], &priority[..], &block, &[0; 7]].concat();
    let sent = [PREFACE, &frame(1, 0x8 | 0x20 | 0x4 | 0x1, 1, &payload)].concat();
    let out = filter(&sent).unwrap();
    let [(1, flags, 1, payload)] = &frames(&out)[..] else { panic!("one HEADERS frame") };
    assert_eq!(*flags, 0x20 | 0x4 | 0x1);
    assert_eq!(payload[..5], priority);
    assert_eq!(Decoder::new().decode(&payload[5..]).unwrap(), request("loca"));
}

#[test]
fn block_in_many_frames_is_joined_and_split_again() {
    let mut long = request("tmp%2Fa.sock");
    long.push((b"x-long".to_vec(), vec![b'x'; 40_000]));
    let block = encode(&mut Encoder::new(), &long);
    let mut sent = [PREFACE, &frame(1, 1, 1, &block[..1]), &frame(9, 0, 1, b"")].concat();
    for piece in block[1..].chunks(10_000) {
        sent.extend(frame(9, 0, 1, piece));
    }
    sent.extend(frame(9, END_HEADERS, 1, b""));
    let out = filter(&sent).unwrap();
    let frames = frames(&out);
    let kinds: Vec<_> = frames.iter().map(|frame| (frame.0, frame.1, frame.2)).collect();
    assert_eq!(kinds, [(1, 1, 1), (9, 0, 1), (9, END_HEADERS, 1)]);
    let joined: Vec<u8> = frames.into_iter().flat_map(|frame| frame.3).collect();
    long[3].1 = b"localhost".to_vec();
    assert_eq!(Decoder::new().decode(&joined).unwrap(), long);
}

#[test]
fn trailers_pass() {
    let mut encoder = Encoder::new();
    let trailers = [(b"grpc-status".to_vec(), b"0".to_vec())];
    let first = encode(&mut encoder, &request("a"));
    let last = encode(&mut encoder, &trailers);
    let sent = [PREFACE, &frame(1, 4, 1, &first), &frame(1, 5, 1, &last)].concat();
    assert_eq!(headers(&filter(&sent).unwrap()), [request("l"), trailers.to_vec()]);
}

fn refused(sent: &[u8]) {
    let error = filter(sent).expect_err("has to be refused");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
}

#[test] // rule 1
fn invalid_framing_closes_the_connection() {
    let block = encode(&mut Encoder::new(), &request("a"));
    let after_preface: [(&str, Vec<u8>); 9] = [
        ("a frame over 16 KiB", frame(0, 0, 1, &vec![0; (16 << 10) + 1])),
        ("a continuation of nothing", frame(9, 4, 1, &block)),
        ("a push promise from a client", frame(5, 4, 1, &block)),
        ("another stream inside a block", [frame(1, 0, 1, &block), frame(9, 4, 3, b"")].concat()),
        ("data inside a block", [frame(1, 0, 1, &block), frame(0, 0, 1, b"")].concat()),
        ("headers inside a block", [frame(1, 0, 1, &block), frame(1, 4, 1, b"")].concat()),
        ("more padding than payload", frame(1, 4 | 8, 1, &[9, 1, 2])),
        ("padding without its length", frame(1, 4 | 8, 1, b"")),
        ("priority cut short", frame(1, 4 | 0x20, 1, &[0, 0])),
    ];
    for (what, frames) in after_preface {
        let error = filter(&[PREFACE, &frames].concat()).expect_err(what);
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{what}: {error}");
    }
}

#[test]
fn block_that_grows_beyond_the_bound_is_refused() {
    let mut encoded = [PREFACE, &frame(1, 0, 1, b"")].concat();
    for _ in 0..5 {
        encoded.extend(frame(9, 0, 1, &vec![0; 16 << 10]));
    }
    refused(&encoded);
}

#[test]
fn connection_may_end_between_frames_only() {
    let sent = connection("a");
    let ends: Vec<usize> = frames(&sent)
        .iter()
        .scan(PREFACE.len(), |at, frame| {
            *at += 9 + frame.3.len();
            Some(*at)
        })
        .collect();
    for at in 0..sent.len() {
        let result = filter(&sent[..at]);
        if at == PREFACE.len() || ends.contains(&at) {
            assert!(result.is_ok(), "at {at}");
        } else {
            assert_eq!(result.expect_err("cut inside a frame").kind(), io::ErrorKind::UnexpectedEof, "at {at}");
        }
    }
}
