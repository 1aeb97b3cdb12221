//! SOAP 1.2 envelopes.

use crate::xml::{self, Element, XmlError};

/// The namespace of SOAP 1.2, which ONVIF uses.
pub const SOAP_12: &str = "http://www.w3.org/2003/05/soap-envelope";
/// The namespace of SOAP 1.1, used in responses of some cameras.
const SOAP_11: &str = "http://schemas.xmlsoap.org/soap/envelope/";
/// Fault codes for missing or wrong credentials (ONVIF Core 5.12.2, WS-Security 12).
const NOT_AUTHORIZED: [&str; 4] = ["NotAuthorized", "FailedAuthentication", "InvalidSecurity", "SenderNotAuthorized"];
/// Limit on a fault's reason, in characters.
const MAX_REASON: usize = 200;

/// The reason for refusing a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SoapError {
    /// Not XML.
    #[error(transparent)]
    Xml(#[from] XmlError),
    /// XML without an envelope.
    #[error("it is no SOAP envelope with a body")]
    NoEnvelope,
}

/// A SOAP fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Set if it reports missing or wrong credentials.
    pub not_authorized: bool,
    /// The reason, at most 200 characters.
    pub reason: String,
}

/// Returns an envelope; both parts are XML.
pub fn envelope(header: &str, body: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><s:Envelope xmlns:s=\"{SOAP_12}\"><s:Header>{header}</s:Header>\
         <s:Body>{body}</s:Body></s:Envelope>"
    )
}

/// Returns the body of a message.
///
/// # Errors
/// If it is not a SOAP message of at most [`xml::MAX_ELEMENTS`] elements.
pub fn body(message: &[u8]) -> Result<Element, SoapError> {
    let mut envelope = xml::parse(message)?;
    let is_soap = envelope.name == "Envelope" && [SOAP_12, SOAP_11].contains(&envelope.namespace.as_str());
    let body = envelope.children.iter().position(|child| child.name == "Body");
    body.filter(|_| is_soap).map(|index| envelope.children.swap_remove(index)).ok_or(SoapError::NoEnvelope)
}

/// Returns the fault in a body, if there is one.
pub fn fault(body: &Element) -> Option<Fault> {
    let fault = body.child("Fault")?;
    let reason = fault.text_at(&["Reason", "Text"]).or_else(|| fault.text_at(&["faultstring"]));
    let reason = reason.unwrap_or("it gives no reason").chars().take(MAX_REASON).collect();
    let codes = std::iter::successors(fault.child("Code"), |code| code.child("Subcode"));
    let codes = codes.filter_map(|code| code.text_at(&["Value"])).chain(fault.text_at(&["faultcode"]));
    let not_authorized = codes.map(local).any(|code| NOT_AUTHORIZED.contains(&code));
    Some(Fault { not_authorized, reason })
}

/// Returns the local part of a qualified fault code; cameras differ in namespaces.
fn local(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault_of(xml: &str) -> Fault {
        fault(&body(envelope("", xml).as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn body_is_read_from_both_soap_versions() {
        for message in [
            envelope("<a/>", "<b/>"),
            format!("<Envelope xmlns='{SOAP_11}'><Body><b/></Body></Envelope>"),
            format!("<x:Envelope xmlns:x='{SOAP_12}'>\n <x:Body>\n<b/></x:Body>\n</x:Envelope>\0"),
        ] {
            let body = body(message.as_bytes()).unwrap();
            assert_eq!(body.children.iter().map(|child| child.name.as_str()).collect::<Vec<_>>(), ["b"], "{message}");
            assert_eq!(fault(&body), None);
        }
    }

    #[test]
    fn other_xml_is_not_a_message() {
        for message in [
            "<Envelope><Body/></Envelope>",
            "<html><Body/></html>",
            "<Envelope xmlns='http://www.w3.org/2003/05/soap-envelope'/>",
            "<Letter xmlns='http://www.w3.org/2003/05/soap-envelope'><Body/></Letter>",
        ] {
            assert_eq!(body(message.as_bytes()), Err(SoapError::NoEnvelope), "{message}");
        }
        assert_eq!(body(b"<html>"), Err(SoapError::Xml(XmlError::Malformed)));
    }

    #[test]
    fn faults_show_whether_credentials_would_help() {
        let code = |value: &str, subcode: &str| {
            fault_of(&format!(
                "<s:Fault><s:Code><s:Value>{value}</s:Value><s:Subcode><s:Value>{subcode}</s:Value></s:Subcode>\
                </s:Code>\
                 <s:Reason><s:Text xml:lang='en'> why </s:Text></s:Reason></s:Fault>"
            ))
        };
        let wanted = |not_authorized| Fault { not_authorized, reason: "why".into() };
        assert_eq!(code("s:Sender", "ter:NotAuthorized"), wanted(true));
        assert_eq!(code("s:Sender", "wsse:FailedAuthentication"), wanted(true));
        assert_eq!(code("s:Receiver", "ter:ActionNotSupported"), wanted(false));
        let old = "<s:Fault><faultcode>wsse:FailedAuthentication</faultcode><faultstring>no</faultstring></s:Fault>";
        assert_eq!(fault_of(old), Fault { not_authorized: true, reason: "no".into() });
        let nested = "<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode><s:Value>ter:InvalidArgVal</s:Value>\
                      <s:Subcode><s:Value>ter:NotAuthorized</s:Value></s:Subcode></s:Subcode></s:Code></s:Fault>";
        assert_eq!(fault_of(nested), Fault { not_authorized: true, reason: "it gives no reason".into() });
    }

    #[test]
    fn long_reason_is_truncated() {
        let fault = fault_of(&format!("<s:Fault><s:Reason><s:Text>{}</s:Text></s:Reason></s:Fault>", "é".repeat(999)));
        assert_eq!(fault.reason, "é".repeat(MAX_REASON));
    }
}
