use super::*;
use crate::soap;

/// An answer in the shape of a real camera's, with its prefixes.
fn body(answer: &str) -> Element {
    let message = format!(
        "<SOAP-ENV:Envelope xmlns:SOAP-ENV='http://www.w3.org/2003/05/soap-envelope' \
         xmlns:tt='http://www.onvif.org/ver10/schema' \
         xmlns:tds='http://www.onvif.org/ver10/device/wsdl' xmlns:trt='http://www.onvif.org/ver10/media/wsdl' \
         xmlns:tr2='http://www.onvif.org/ver20/media/wsdl'><SOAP-ENV:Body>{answer}</SOAP-ENV:Body></SOAP-ENV:Envelope>"
    );
    soap::body(message.as_bytes()).unwrap()
}

fn date(date: [&str; 3], time: [&str; 3]) -> Option<Timestamp> {
    let ([year, month, day], [hour, minute, second]) = (date, time);
    clock(&body(&format!(
        "<tds:GetSystemDateAndTimeResponse><tds:SystemDateAndTime><tt:DateTimeType>NTP</tt:DateTimeType>\
         <tt:UTCDateTime>\
         <tt:Time><tt:Hour>{hour}</tt:Hour><tt:Minute>{minute}</tt:Minute><tt:Second>{second}</tt:Second></tt:Time>\
         <tt:Date><tt:Year>{year}</tt:Year><tt:Month>{month}</tt:Month><tt:Day>{day}</tt:Day></tt:Date>\
         </tt:UTCDateTime></tds:SystemDateAndTime></tds:GetSystemDateAndTimeResponse>"
    )))
}

#[test]
fn requests_are_well_formed_in_their_namespace() {
    for (request, service) in [
        (get_system_date_and_time(), "device"),
        (get_device_information(), "device"),
        (get_network_interfaces(), "device"),
        (get_scopes(), "device"),
        (get_services(), "device"),
        (get_capabilities(), "device"),
        (Media::One.get_profiles(), "media"),
        (Media::One.get_stream_uri("a<b>&"), "media"),
        (Media::Two.get_stream_uri("a<b>&"), "media"),
    ] {
        let body = soap::body(soap::envelope("", &request.body).as_bytes()).unwrap();
        let [element] = &body.children[..] else { panic!("{request:?}") };
        assert_eq!(element.name, request.name);
        assert!(element.namespace.ends_with(&format!("/{service}/wsdl")), "{request:?}");
        assert!(element.text_at(&["ProfileToken"]).is_none_or(|token| token == "a<b>&"));
    }
}

#[test]
fn clock_is_read_as_utc() {
    assert_eq!(date(["2024", "2", "29"], ["23", "59", "58"]), "2024-02-29T23:59:58Z".parse().ok());
    assert_eq!(date(["1970", "01", "01"], ["00", "00", "07"]), Some(Timestamp::from_second(7).unwrap()));
    for nonsense in [["2023", "2", "29"], ["x", "1", "1"], ["99999", "1", "1"], ["2024", "300", "1"], ["", "", ""]] {
        assert_eq!(date(nonsense, ["0", "0", "0"]), None, "{nonsense:?}");
    }
    assert_eq!(clock(&body("<tds:GetSystemDateAndTimeResponse/>")), None);
}

#[test]
fn information_is_truncated_and_cleaned() {
    let long = "x".repeat(1000);
    let answer = format!(
        "<tds:GetDeviceInformationResponse><tds:Manufacturer> Acme\n&#9;Inc </tds:Manufacturer>\
         <tds:Model>{long}</tds:Model>\
         <tds:FirmwareVersion/><tds:SerialNumber>1</tds:SerialNumber></tds:GetDeviceInformationResponse>"
    );
    let expected = Information {
        manufacturer: "Acme  Inc".into(),
        model: "x".repeat(MAX_VALUE),
        serial_number: "1".into(),
        ..Information::default()
    };
    assert_eq!(information(&body(&answer)), Some(expected));
    assert_eq!(information(&body("<tds:GetDeviceInformation/>")), None);
}

fn interfaces() -> Element {
    let interface = |mac: &str, addresses: &str| {
        format!(
            "<tds:NetworkInterfaces token='x'><tt:Enabled>true</tt:Enabled><tt:Info><tt:Name>x</tt:Name>{mac}</tt:Info>\
             {addresses}</tds:NetworkInterfaces>"
        )
    };
    let mac = |mac| format!("<tt:HwAddress>{mac}</tt:HwAddress>");
    let wired = "<tt:IPv4><tt:Enabled>true</tt:Enabled><tt:Config><tt:Manual><tt:Address>192.168.1.5</tt:Address>\
                 <tt:PrefixLength>24</tt:PrefixLength></tt:Manual><tt:DHCP>false</tt:DHCP></tt:Config></tt:IPv4>";
    let wireless = "<tt:IPv4><tt:Config><tt:FromDHCP><tt:Address>10.0.0.7</tt:Address></tt:FromDHCP></tt:Config>\
     </tt:IPv4>\
                    <tt:IPv6><tt:Config><tt:LinkLocal><tt:Address>fe80::7</tt:Address></tt:LinkLocal></tt:Config>\
                    </tt:IPv6>";
    body(&format!(
        "<tds:GetNetworkInterfacesResponse>{}{}{}</tds:GetNetworkInterfacesResponse>",
        interface("", wireless),
        interface(&mac("28:57:be:65:7d:d5"), wired),
        interface(&mac("28:57:BE:65:7D:D6"), wireless),
    ))
}

#[test]
fn interface_is_the_one_with_our_address() {
    let found = |reached: Option<&str>| interface(&interfaces(), reached.map(|ip| ip.parse().unwrap())).unwrap();
    assert_eq!(found(Some("192.168.1.5")).mac, "28:57:be:65:7d:d5");
    assert_eq!(found(Some("10.0.0.7")).mac, "28:57:BE:65:7D:D6");
    assert_eq!(found(Some("fe80::7")).mac, "28:57:BE:65:7D:D6");
    for elsewhere in [Some("203.0.113.1"), None] {
        let first = found(elsewhere);
        assert_eq!((first.mac.as_str(), first.addresses), ("28:57:be:65:7d:d5", vec!["192.168.1.5".parse().unwrap()]));
    }
    assert_eq!(interface(&body("<tds:GetNetworkInterfacesResponse/>"), None), None);
}

#[test]
fn scopes_are_a_list() {
    let answer = "<tds:GetScopesResponse><tds:Scopes><tt:ScopeDef>Fixed</tt:ScopeDef><tt:ScopeItem>a</tt:ScopeItem>\
     </tds:Scopes>\
                  <tds:Scopes><tt:ScopeItem>b</tt:ScopeItem></tds:Scopes></tds:GetScopesResponse>";
    assert_eq!(scopes(&body(answer)).as_deref(), Some("a b"));
    assert_eq!(scopes(&body("<tds:GetScopesResponse/>")).as_deref(), Some(""));
    assert_eq!(scopes(&body("<x/>")), None);
}

#[test]
fn media_service_is_found_by_namespace() {
    let service = |name: &str| {
        format!(
            "<tds:Service><tds:Namespace>http://www.onvif.org/{name}/wsdl</tds:Namespace>\
            <tds:XAddr>http://c/{name}</tds:XAddr>\
             </tds:Service>"
        )
    };
    let answer = |names: &[&str]| {
        let services: String = names.iter().map(|name| service(name)).collect();
        body(&format!("<tds:GetServicesResponse>{services}</tds:GetServicesResponse>"))
    };
    let both = answer(&["ver10/device", "ver20/media", "ver10/media"]);
    assert_eq!(media_service(&both), Some((Media::One, "http://c/ver10/media")));
    assert_eq!(media_service(&answer(&["ver20/media"])), Some((Media::Two, "http://c/ver20/media")));
    assert_eq!(media_service(&answer(&["ver10/device"])), None);
    let old = "<tds:GetCapabilitiesResponse><tds:Capabilities><tt:Media><tt:XAddr>http://c/m</tt:XAddr></tt:Media>\
               </tds:Capabilities></tds:GetCapabilitiesResponse>";
    assert_eq!(media_capability(&body(old)), Some((Media::One, "http://c/m")));
}

#[test]
fn profile_is_the_first_or_matches_token_or_name() {
    let answer = body(
        "<trt:GetProfilesResponse><trt:Profiles token='p0'><tt:Name>main</tt:Name></trt:Profiles>\
         <trt:Profiles fixed='true' token='p1'><tt:Name>sub</tt:Name></trt:Profiles><trt:Profiles token='p2'/>\
         </trt:GetProfilesResponse>",
    );
    let found = |name: &str| profile(&answer, &WantedStream::Profile(name.to_owned()));
    assert_eq!(profile(&answer, &WantedStream::First), Ok("p0"));
    assert_eq!([found("p1"), found("sub"), found("p2")], [Ok("p1"), Ok("p1"), Ok("p2")]);
    assert_eq!(found("third"), Err(vec!["main", "sub", "p2"]));
    assert_eq!(profile(&body("<trt:GetProfilesResponse/>"), &WantedStream::First), Err(vec![]));
}

#[test]
fn stream_uri_is_read_from_both_media_versions() {
    let one =
        "<trt:GetStreamUriResponse><trt:MediaUri><tt:Uri>rtsp://c/1</tt:Uri></trt:MediaUri></trt:GetStreamUriResponse>";
    let two = "<tr2:GetStreamUriResponse><tr2:Uri>rtsp://c/2</tr2:Uri></tr2:GetStreamUriResponse>";
    assert_eq!(stream_uri(&body(one)), Some("rtsp://c/1"));
    assert_eq!(stream_uri(&body(two)), Some("rtsp://c/2"));
    assert_eq!(stream_uri(&body("<x/>")), None);
}
