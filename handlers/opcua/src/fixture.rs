//! A simulated server for unit tests, with messages encoded by `async-opcua-types`, another implementation of OPC UA.

use opcua_types::{
    ApplicationDescription, BinaryDecodable, BinaryEncodable, ChannelSecurityToken, ContextOwned, EndpointDescription,
    FindServersResponse, GetEndpointsResponse, LocalizedText, MessageInfo, NodeId, OpenSecureChannelResponse,
    ResponseHeader, ServiceFault, StatusCode, TypeLoaderCollection, UserTokenPolicy,
};
pub(crate) use opcua_types::{ApplicationType, UserTokenType};

use crate::binary::Writer;
use crate::chunk;

pub(crate) const CHANNEL: u32 = 7;
pub(crate) const TOKEN: u32 = 9;

fn context() -> ContextOwned {
    ContextOwned::new(Default::default(), TypeLoaderCollection::new_empty(), Default::default())
}

/// A message: the number of its type, then the message.
pub(crate) fn encoded<M: BinaryEncodable + MessageInfo>(message: &M) -> Vec<u8> {
    let context = context();
    let id = NodeId::from(message.type_id()).encode_to_vec(&context.context());
    [id, message.encode_to_vec(&context.context())].concat()
}

/// The number of a message's type, and the message.
pub(crate) fn decoded<M: BinaryDecodable>(mut bytes: &[u8]) -> (NodeId, M) {
    let context = context();
    let id = NodeId::decode(&mut bytes, &context.context()).unwrap();
    let message = M::decode(&mut bytes, &context.context()).unwrap();
    assert_eq!(bytes, b"", "nothing may be left over");
    (id, message)
}

pub(crate) fn application(kind: ApplicationType, uri: &str, name: &str, urls: &[&str]) -> ApplicationDescription {
    ApplicationDescription {
        application_uri: uri.into(),
        product_uri: "urn:product".into(),
        application_name: LocalizedText::new("en", name),
        application_type: kind,
        discovery_urls: Some(urls.iter().map(|url| (*url).into()).collect()),
        ..ApplicationDescription::default()
    }
}

pub(crate) fn endpoint(server: ApplicationDescription, policy: &str, tokens: &[UserTokenType]) -> EndpointDescription {
    let token = |token_type: &UserTokenType| UserTokenPolicy { token_type: *token_type, ..UserTokenPolicy::default() };
    EndpointDescription {
        endpoint_url: "opc.tcp://inside:4841".into(),
        server,
        server_certificate: b"\x30\x01x".as_slice().into(),
        security_policy_uri: format!("http://opcfoundation.org/UA/SecurityPolicy#{policy}").into(),
        user_identity_tokens: Some(tokens.iter().map(token).collect()),
        ..EndpointDescription::default()
    }
}

pub(crate) fn servers(servers: Vec<ApplicationDescription>) -> Vec<u8> {
    encoded(&FindServersResponse { response_header: ResponseHeader::null(), servers: Some(servers) })
}

pub(crate) fn endpoints(endpoints: Vec<EndpointDescription>) -> Vec<u8> {
    encoded(&GetEndpointsResponse { response_header: ResponseHeader::null(), endpoints: Some(endpoints) })
}

/// A server with one endpoint, without security.
pub(crate) fn one_endpoint(uri: &str) -> Vec<u8> {
    let server = application(ApplicationType::Server, uri, "", &[]);
    endpoints(vec![endpoint(server, "None", &[UserTokenType::Anonymous])])
}

pub(crate) fn fault(status: StatusCode) -> Vec<u8> {
    let response_header = ResponseHeader { service_result: status, ..ResponseHeader::null() };
    encoded(&ServiceFault { response_header })
}

pub(crate) fn acknowledge(receive_buffer: u32) -> Vec<u8> {
    let mut body = Writer::default();
    body.u32(0).u32(receive_buffer).u32(8192).u32(0).u32(0);
    chunk::write(*b"ACK", &body.into_bytes())
}

pub(crate) fn refuse(status: u32, reason: &str) -> Vec<u8> {
    let mut body = Writer::default();
    body.u32(status).string(reason);
    chunk::write(*b"ERR", &body.into_bytes())
}

pub(crate) fn opened(policy: &str, request: u32) -> Vec<u8> {
    let security_token =
        ChannelSecurityToken { channel_id: CHANNEL, token_id: TOKEN, ..ChannelSecurityToken::default() };
    let response = OpenSecureChannelResponse { security_token, ..OpenSecureChannelResponse::default() };
    let mut body = Writer::default();
    body.u32(CHANNEL).string(&format!("http://opcfoundation.org/UA/SecurityPolicy#{policy}")).null().null();
    body.u32(1).u32(request).raw(&encoded(&response));
    chunk::write(*b"OPN", &body.into_bytes())
}

/// A chunk of a response; `place` is `C`, `F` or `A`.
pub(crate) fn chunk(place: u8, [channel, token, request]: [u32; 3], body: &[u8]) -> Vec<u8> {
    let mut chunk = Writer::default();
    chunk.u32(channel).u32(token).u32(51).u32(request).raw(body);
    let mut chunk = chunk::write(*b"MSG", &chunk.into_bytes());
    chunk[3] = place;
    chunk
}
