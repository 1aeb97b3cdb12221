use std::time::Duration;

use opcua_types::{
    CloseSecureChannelRequest, FindServersRequest, GetEndpointsRequest, MessageSecurityMode, NodeId, ObjectId,
    OpenSecureChannelRequest, RequestHeader, SecurityTokenRequestType, StatusCode,
};
use proptest::prelude::*;

use super::*;
use crate::fixture::{self, UserTokenType, application, decoded, endpoint};

/// 2021-09-09 08:53:20 UTC
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::new(1_631_177_600, 123_456_789)
}

fn check_header(header: &RequestHeader) {
    assert_eq!(header.timestamp.as_chrono().to_rfc3339(), "2021-09-09T08:53:20.123456700+00:00");
    assert!(header.authentication_token.is_null() && header.audit_entry_id.is_null());
    assert!(header.additional_header.is_null() && header.return_diagnostics.bits() == 0);
}

#[test]
fn requests_match_another_implementation() {
    let url = "opc.tcp://plc:4840/";
    let (id, found): (NodeId, FindServersRequest) = decoded(&Question::FindServers.request(url, now()));
    assert_eq!(id, ObjectId::FindServersRequest_Encoding_DefaultBinary);
    assert_eq!((found.endpoint_url.as_ref(), found.locale_ids, found.server_uris), (url, None, None));
    check_header(&found.request_header);

    let (id, found): (NodeId, GetEndpointsRequest) = decoded(&Question::GetEndpoints.request(url, now()));
    assert_eq!(id, ObjectId::GetEndpointsRequest_Encoding_DefaultBinary);
    assert_eq!((found.endpoint_url.as_ref(), found.locale_ids, found.profile_uris), (url, None, None));
    check_header(&found.request_header);

    let (id, found): (NodeId, OpenSecureChannelRequest) = decoded(&open_secure_channel(now()));
    assert_eq!(id, ObjectId::OpenSecureChannelRequest_Encoding_DefaultBinary);
    assert_eq!((found.request_type, found.security_mode), (SecurityTokenRequestType::Issue, MessageSecurityMode::None));
    assert!(found.requested_lifetime == 60_000 && found.client_nonce.is_null());
    check_header(&found.request_header);

    let (id, found): (NodeId, CloseSecureChannelRequest) = decoded(&close_secure_channel(now()));
    assert_eq!(id, ObjectId::CloseSecureChannelRequest_Encoding_DefaultBinary);
    check_header(&found.request_header);
}

#[test]
fn unset_clock_is_no_time() {
    assert_eq!(date_time(UNIX_EPOCH), 116_444_736_000_000_000);
    assert_eq!(date_time(UNIX_EPOCH - Duration::from_secs(1)), 116_444_736_000_000_000);
}

#[test]
fn applications_of_another_implementation_are_read() {
    let kinds = [
        (fixture::ApplicationType::Server, ApplicationType::Server),
        (fixture::ApplicationType::Client, ApplicationType::Client),
        (fixture::ApplicationType::ClientAndServer, ApplicationType::ClientAndServer),
        (fixture::ApplicationType::DiscoveryServer, ApplicationType::DiscoveryServer),
    ];
    for (theirs, ours) in kinds {
        let response = fixture::servers(vec![application(theirs, "urn:a", "Pümp", &["opc.tcp://a", ""])]);
        let expected = Application {
            uri: "urn:a".into(),
            product_uri: "urn:product".into(),
            name: "Pümp".into(),
            kind: ours,
            discovery_urls: vec!["opc.tcp://a".into(), String::new()],
        };
        assert_eq!(read_applications(&response), Ok(vec![expected]));
    }
    let null = opcua_types::ApplicationDescription::default();
    assert_eq!(read_applications(&fixture::servers(vec![null])), Ok(vec![Application::default()]));
}

#[test]
fn endpoints_of_another_implementation_are_read() {
    let server = || application(fixture::ApplicationType::Server, "urn:a", "A", &["opc.tcp://a"]);
    let tokens = [UserTokenType::Certificate, UserTokenType::Anonymous];
    let endpoints = vec![endpoint(server(), "Basic256Sha256", &tokens), endpoint(server(), "None", &[])];
    let read = read_endpoints(&fixture::endpoints(endpoints)).unwrap();
    assert_eq!((read.len(), read[0].server.uri.as_str(), read[0].server.name.as_str()), (2, "urn:a", "A"));
    assert_eq!(
        (read[0].url.as_str(), read[0].certificate.as_slice()),
        ("opc.tcp://inside:4841", b"\x30\x01x".as_slice())
    );
    assert_eq!(read[0].security_policy, "http://opcfoundation.org/UA/SecurityPolicy#Basic256Sha256");
    assert_eq!((read[0].user_tokens.as_slice(), read[1].user_tokens.as_slice()), ([2, 0].as_slice(), [].as_slice()));
}

#[test]
fn number_of_urls_per_application_is_bounded() {
    let urls = ["opc.tcp://a"; 100];
    let many = application(fixture::ApplicationType::Server, "urn:a", "A", &urls);
    let next = application(fixture::ApplicationType::Server, "urn:b", "B", &[]);
    let read = read_applications(&fixture::servers(vec![many, next])).unwrap();
    assert_eq!((read[0].discovery_urls.len(), read[1].uri.as_str()), (MAX_URLS, "urn:b"));
}

#[test]
fn bad_name_hides_no_other_server() {
    let named = |name: &str| application(fixture::ApplicationType::Server, "urn:a", name, &[]);
    let mut response = fixture::servers(vec![named("a\0b\nc"), named("XYZZY"), named("d")]);
    let place = response.windows(5).position(|bytes| bytes == b"XYZZY").unwrap();
    response[place] = 0xff;
    let names: Vec<String> = read_applications(&response).unwrap().into_iter().map(|read| read.name).collect();
    assert_eq!(names, ["a\u{fffd}b\u{fffd}c", "\u{fffd}YZZY", "d"]);
}

#[test]
fn other_responses_are_reported() {
    let refused = Error::Fault(Status(0x800b_0000));
    assert_eq!(read_applications(&fixture::fault(StatusCode::BadServiceUnsupported)), Err(refused.clone()));
    assert_eq!(refused.to_string(), "it answers BadServiceUnsupported");
    assert_eq!(
        read_endpoints(&fixture::fault(StatusCode::BadShutdown)).unwrap_err().to_string(),
        "it answers BadShutdown"
    );
    assert_eq!(
        read_endpoints(&fixture::fault(StatusCode::BadOutOfRange)).unwrap_err().to_string(),
        "it answers status 0x803c0000"
    );
    let other = read_endpoints(&fixture::servers(vec![])).unwrap_err();
    assert_eq!(other.to_string(), "it answers with another message (type 425)");
    assert_eq!(read_token(&fixture::fault(StatusCode::Good)), Err(Error::Unexpected(Some(397))));
    assert_eq!(read_token(&[3, 0, 0, 1, 0, 0, 0, b'x']), Err(Error::Unexpected(None)));
}

/// A response up to the diagnostics in its header.
fn response_with(diagnostics_and_rest: &[u8]) -> Vec<u8> {
    [[1, 0, 0xa9, 1].as_slice(), &[0; 16], diagnostics_and_rest].concat()
}

#[test]
fn hostile_lengths_allocate_nothing() {
    let nested = response_with(&vec![0x40; 1 << 20]);
    assert_eq!(read_applications(&nested), Err(Error::Malformed(binary::Error::Truncated)));
    let unnested = response_with(&[&[0x40; 1000], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].as_slice()].concat());
    assert_eq!(read_applications(&unnested), Ok(vec![]), "nesting alone is allowed");
    let all_of_it = [0x7f; 1].into_iter().chain([0; 16]).chain([1, 0, 0, 0, b'x']).chain([0; 4]).chain([0; 12]);
    assert_eq!(read_applications(&response_with(&all_of_it.collect::<Vec<u8>>())), Ok(vec![]));

    let huge = i32::MAX.to_le_bytes();
    let xml = [[0, 0, 0, 0, 0, 0, 0, 2].as_slice(), &huge].concat();
    assert_eq!(read_applications(&response_with(&xml)), Err(Error::Malformed(binary::Error::Truncated)));
    let table = [[0].as_slice(), &huge].concat();
    assert_eq!(read_applications(&response_with(&table)), Err(Error::Malformed(binary::Error::Truncated)));
    let negative = [[0].as_slice(), &(-2i32).to_le_bytes()].concat();
    assert_eq!(read_applications(&response_with(&negative)), Err(Error::Malformed(binary::Error::Length(-2))));
}

#[test]
fn lists_are_bounded() {
    let list = |count: i32, element: usize| {
        let empty = vec![0; element * usize::try_from(count).unwrap()];
        response_with(&[[0; 8].as_slice(), &count.to_le_bytes(), &empty].concat())
    };
    assert_eq!(read_applications(&list(4096, 25)).unwrap().len(), MAX_APPLICATIONS);
    let error = read_applications(&list(4097, 25)).unwrap_err();
    assert_eq!(error.to_string(), "it lists 4097 applications (at most 4096)");
    let mut endpoints = list(1025, 50);
    endpoints[2..4].copy_from_slice(&431u16.to_le_bytes());
    assert_eq!(read_endpoints(&endpoints).unwrap_err().to_string(), "it lists 1025 endpoints (at most 1024)");
    let claimed = response_with(&[[0; 8].as_slice(), &i32::MAX.to_le_bytes()].concat());
    assert_eq!(read_applications(&claimed), Err(Error::Malformed(binary::Error::Truncated)));
}

fn all(bytes: &[u8]) {
    let _ = read_applications(bytes);
    let _ = read_endpoints(bytes);
    let _ = read_token(bytes);
}

proptest! {
    #[test]
    fn truncated_responses_are_refused(uris in prop::collection::vec("[a-z:]{0,9}", 1..4), cut in any::<prop::sample::Index>()) {
        let of = |uri: &String| application(fixture::ApplicationType::Server, uri, uri, &[uri, uri]);
        let response = fixture::servers(uris.iter().map(of).collect());
        let read: Vec<String> = read_applications(&response).unwrap().into_iter().map(|read| read.uri).collect();
        prop_assert_eq!(&read, &uris);
        let cut = cut.index(response.len());
        prop_assert_eq!(read_applications(&response[..cut]), Err(Error::Malformed(binary::Error::Truncated)));
    }

    #[test]
    fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        all(&bytes);
        all(&response_with(&bytes));
    }

    #[test]
    fn mutated_responses_cause_no_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let server = || application(fixture::ApplicationType::Server, "urn:a", "A", &["opc.tcp://a"]);
        for mut response in [fixture::servers(vec![server(), server()]), fixture::one_endpoint("urn:a")] {
            for (place, byte) in &changes {
                let place = place.index(response.len());
                response[place] = *byte;
            }
            all(&response);
        }
    }
}
