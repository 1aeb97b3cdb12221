//! Messages of cameras, as in the ONVIF and WS-Discovery specifications.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::PORT;
use super::camera::{Camera, address, location, mac, uuid};

/// Returns a SOAP message with all prefixes that bodies use.
pub(super) fn envelope(header: &str, body: &str) -> String {
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<SOAP-ENV:Envelope xmlns:SOAP-ENV="http://www.w3.org/2003/05/soap-envelope"
    xmlns:wsa="http://schemas.xmlsoap.org/ws/2004/08/addressing" xmlns:d="http://schemas.xmlsoap.org/ws/2005/04/discovery"
    xmlns:dn="http://www.onvif.org/ver10/network/wsdl" xmlns:tds="http://www.onvif.org/ver10/device/wsdl"
    xmlns:trt="http://www.onvif.org/ver10/media/wsdl" xmlns:tt="http://www.onvif.org/ver10/schema"
    xmlns:ter="http://www.onvif.org/ver10/error">
  <SOAP-ENV:Header>{header}</SOAP-ENV:Header>
  <SOAP-ENV:Body>{body}</SOAP-ENV:Body>
</SOAP-ENV:Envelope>"#
    )
}

pub(super) fn fault(code: &str, subcode: &str, reason: &str) -> String {
    envelope(
        "",
        &format!(
            "<SOAP-ENV:Fault><SOAP-ENV:Code><SOAP-ENV:Value>SOAP-ENV:{code}</SOAP-ENV:Value><SOAP-ENV:Subcode>\
             <SOAP-ENV:Value>ter:{subcode}</SOAP-ENV:Value></SOAP-ENV:Subcode></SOAP-ENV:Code><SOAP-ENV:Reason>\
             <SOAP-ENV:Text xml:lang=\"en\">{reason}</SOAP-ENV:Text></SOAP-ENV:Reason></SOAP-ENV:Fault>"
        ),
    )
}

/// Returns the part that announces a camera in probe matches and Hello.
fn presentation(camera: &Camera) -> String {
    let scopes = if camera.with_scopes { scopes(camera.number).join(" ") } else { String::new() };
    let (uuid, urls) = (uuid(camera.number), &camera.urls);
    format!(
        "<wsa:EndpointReference><wsa:Address>urn:uuid:{uuid}</wsa:Address></wsa:EndpointReference>\
         <d:Types>dn:NetworkVideoTransmitter tds:Device</d:Types><d:Scopes>{scopes}</d:Scopes>\
         <d:XAddrs>{urls}</d:XAddrs>\
         <d:MetadataVersion>1</d:MetadataVersion>"
    )
}

pub(super) fn probe_match(camera: &Camera, relates_to: &str, is_bare: bool) -> String {
    let found = format!("<d:ProbeMatch>{}</d:ProbeMatch>", presentation(camera));
    let body = if is_bare { found } else { format!("<d:ProbeMatches>{found}</d:ProbeMatches>") };
    envelope(&discovery_header("ProbeMatches", &format!("<wsa:RelatesTo>{relates_to}</wsa:RelatesTo>")), &body)
}

pub(super) fn hello(camera: &Camera) -> String {
    envelope(&discovery_header("Hello", ""), &format!("<d:Hello>{}</d:Hello>", presentation(camera)))
}

pub(super) fn bye(camera: &Camera) -> String {
    envelope(&discovery_header("Bye", ""), &format!("<d:Bye>{}</d:Bye>", presentation(camera)))
}

fn discovery_header(action: &str, more: &str) -> String {
    format!("<wsa:Action>http://schemas.xmlsoap.org/ws/2005/04/discovery/{action}</wsa:Action>{more}")
}

fn scopes(number: u32) -> [String; 3] {
    [
        "onvif://www.onvif.org/Profile/Streaming".to_owned(),
        format!("onvif://www.onvif.org/name/Camera{number}"),
        location(number),
    ]
}

/// Returns the camera's clock.
pub(super) fn now(camera: &Camera) -> Timestamp {
    let ahead = Duration::from_secs(camera.clock_ahead.unsigned_abs());
    let now = SystemTime::now();
    Timestamp::try_from(if camera.clock_ahead < 0 { now - ahead } else { now + ahead }).unwrap()
}

/// Returns the response to a request; `None` if the camera does not support it.
pub(super) fn answer(camera: &Camera, request: &str, token: &str) -> Option<String> {
    let number = camera.number;
    let answer = match request {
        "GetSystemDateAndTime" => format!("<tds:SystemDateAndTime>{}</tds:SystemDateAndTime>", date(now(camera))),
        "GetDeviceInformation" => format!(
            "<tds:Manufacturer>Farm</tds:Manufacturer><tds:Model>Cam {number}</tds:Model><tds:FirmwareVersion>1.2\
             </tds:FirmwareVersion><tds:SerialNumber>F{number:06}</tds:SerialNumber>\
             <tds:HardwareId>farm</tds:HardwareId>"
        ),
        "GetNetworkInterfaces" => interfaces(number),
        "GetScopes" => scopes(number)
            .map(|scope| {
                format!("<tds:Scopes><tt:ScopeDef>Fixed</tt:ScopeDef><tt:ScopeItem>{scope}</tt:ScopeItem></tds:Scopes>")
            })
            .concat(),
        "GetServices" => format!(
            "<tds:Service><tds:Namespace>http://www.onvif.org/ver10/media/wsdl</tds:Namespace><tds:XAddr>\
             http://{}:{PORT}/onvif/media_service</tds:XAddr></tds:Service>",
            address(number)
        ),
        "GetProfiles" => ["main", "sub"]
            .map(|name| format!("<trt:Profiles token=\"{name}0\"><tt:Name>{name}</tt:Name></trt:Profiles>"))
            .concat(),
        "GetStreamUri" => {
            format!("<trt:MediaUri><tt:Uri>rtsp://{}:554/{token}</tt:Uri></trt:MediaUri>", address(number))
        }
        _ => return None,
    };
    let prefix = if matches!(request, "GetProfiles" | "GetStreamUri") { "trt" } else { "tds" };
    Some(envelope("", &format!("<{prefix}:{request}Response>{answer}</{prefix}:{request}Response>")))
}

fn date(now: Timestamp) -> String {
    let now = now.to_zoned(TimeZone::UTC);
    let (year, month, day, hour, minute, second) =
        (now.year(), now.month(), now.day(), now.hour(), now.minute(), now.second());
    format!(
        "<tt:DateTimeType>NTP</tt:DateTimeType><tt:DaylightSavings>false</tt:DaylightSavings><tt:UTCDateTime><tt:Time>\
         <tt:Hour>{hour}</tt:Hour><tt:Minute>{minute}</tt:Minute><tt:Second>{second}</tt:Second></tt:Time><tt:Date>\
         <tt:Year>{year}</tt:Year><tt:Month>{month}</tt:Month><tt:Day>{day}</tt:Day></tt:Date></tt:UTCDateTime>"
    )
}

fn interfaces(number: u32) -> String {
    format!(
        "<tds:NetworkInterfaces token=\"eth0\"><tt:Enabled>true</tt:Enabled><tt:Info><tt:Name>eth0</tt:Name>\
         <tt:HwAddress>{}\
         </tt:HwAddress><tt:MTU>1500</tt:MTU></tt:Info><tt:IPv4><tt:Enabled>true</tt:Enabled><tt:Config><tt:Manual>\
         <tt:Address>{}</tt:Address><tt:PrefixLength>8</tt:PrefixLength></tt:Manual><tt:DHCP>false</tt:DHCP>\
         </tt:Config>\
         </tt:IPv4></tds:NetworkInterfaces>",
        mac(number),
        address(number)
    )
}
