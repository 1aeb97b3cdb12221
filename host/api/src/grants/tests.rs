use serde_json::{Value, json};

use super::*;
use crate::validate::FieldError;

fn read_json(grants: Value) -> (model::Grants, Vec<String>) {
    let grants: Grants = serde_json::from_value(grants).unwrap();
    let mut errors = FieldErrors::default();
    let read = read(&grants, &mut errors);
    (read, errors.0.into_iter().map(|error| error.path).collect())
}

#[test]
fn nothing_is_granted_by_default() {
    let (grants, errors) = read_json(json!({"devicePaths": null}));
    assert_eq!((grants, errors.len()), (model::Grants::default(), 0));
}

#[test]
fn reserved_variables_are_granted_by_name() {
    let (grants, errors) = read_json(json!({"environment": ["PATH", "A=B"]}));
    assert_eq!((grants.environment, errors), (vec!["PATH".to_owned()], vec!["/spec/grants/environment/1".to_owned()]));
}

#[test]
fn networks_and_ports_are_read_as_people_write_them() {
    let (grants, errors) =
        read_json(json!({"tcp": [{"networks": ["10.0.0.0/8", "192.0.2.7"], "ports": [80, "8000-8999", "443"]}]}));
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(grants.tcp[0].ports, [80..=80, 8000..=8999, 443..=443]);
    assert!(grants.tcp[0].contain("192.0.2.7:443".parse().unwrap()));
    assert!(!grants.tcp[0].contain("192.0.2.8:443".parse().unwrap()));
}

#[test]
fn invalid_grants_are_named_and_grant_nothing() {
    for (grants, path) in [
        (json!({"multicast": [{"group": "10.0.0.1", "port": 1}]}), "/spec/grants/multicast/0/group"),
        (json!({"multicast": [{"group": "239.0.0.1", "port": 0}]}), "/spec/grants/multicast/0/port"),
        (json!({"udp": [{"networks": ["10.0.0.0/33"], "ports": [1]}]}), "/spec/grants/udp/0/networks/0"),
        (json!({"udp": [{"networks": ["::ffff:10.0.0.0/104"], "ports": [1]}]}), "/spec/grants/udp/0/networks/0"),
        (json!({"tcp": [{"networks": ["example"], "ports": [1]}]}), "/spec/grants/tcp/0/networks/0"),
        (json!({"tcp": [{"networks": [], "ports": [1, 0]}]}), "/spec/grants/tcp/0/ports/1"),
        (json!({"tcp": [{"networks": [], "ports": [65536]}]}), "/spec/grants/tcp/0/ports/0"),
        (json!({"tcp": [{"networks": [], "ports": ["9-8"]}]}), "/spec/grants/tcp/0/ports/0"),
        (
            json!({"http": [{"networks": [], "ports": [], "tls": {"insecure": true, "caBundle": "x"}}]}),
            "/spec/grants/http/0/tls",
        ),
        (json!({"http": [{"networks": [], "ports": [], "tls": {"caBundle": "x"}}]}), "/spec/grants/http/0/tls"),
        (
            json!({"http": [{"networks": [], "ports": [], "tls": {"fingerprints": ["12:34"]}}]}),
            "/spec/grants/http/0/tls",
        ),
    ] {
        let (_, errors) = read_json(grants.clone());
        assert_eq!(errors, [path], "{grants}");
    }
    assert!(read_json(json!({"tcp": [{"networks": ["x"], "ports": [1]}]})).0.tcp[0].networks.is_empty());
}

#[test]
fn granted_paths_are_plain_or_patterns() {
    let good = [
        "/dev/video0",
        "/dev/video*",
        "/dev/*",
        "/dev/tty*/x",
        "/dev/bus/usb/**",
        "/dev/**",
        "/**",
        "/run/a b..c/...",
        "/dev/serial/by-id/usb-A_B:1.0",
    ];
    let bad = [
        "",
        "/",
        "//",
        "**",
        "dev/**",
        "dev/video0",
        "/dev/",
        "/dev//x",
        "//**",
        "/dev/./x",
        "/dev/../etc/**",
        "/dev/..",
        "/dev/**x",
        "/dev/video?",
        "/dev/video[0-9]",
        "/dev/***",
        "/dev/**/",
        "/dev/**/**",
        "/dev/x\0",
    ];
    for field in ["devicePaths", "mountPaths", "containerPaths"] {
        assert_eq!(read_json(json!({field: good})).1, Vec::<String>::new());
        for path in bad {
            let (grants, errors) = read_json(json!({field: ["/dev/video0", path]}));
            assert_eq!(errors, [format!("/spec/grants/{field}/1")], "{path}");
            let paths = match field {
                "devicePaths" => grants.device_paths,
                "mountPaths" => grants.mount_paths,
                _ => grants.container_paths,
            };
            assert_eq!(paths, ["/dev/video0"], "{path}");
        }
        assert_eq!(read_json(json!({field: []})).1, Vec::<String>::new());
    }
    let mut errors = FieldErrors::default();
    let grants = Grants { device_paths: vec!["/dev/video?".to_owned()], ..Grants::default() };
    read(&grants, &mut errors);
    let message = "'/dev/video?' is not a path that can be granted; write a path, such as /dev/video0, a pattern of names, \
                such as /dev/video*, or a directory and /**, such as /dev/snd/**, for everything below it";
    assert_eq!(errors.0, [FieldError::new("/spec/grants/devicePaths/0", message)]);
}

#[test]
fn granted_names_are_globs_over_dns_names() {
    let good =
        ["*", "cam-?.Example", "_opcua._tcp.*", "10.0.0.1", "cam[0-9].x", "cam[![:alpha:]]", "a|b", "\\*", "[^-]"];
    assert_eq!(read_json(json!({"names": good})), {
        let names = good.iter().map(ToString::to_string).collect();
        (model::Grants { names, ..read_json(json!({})).0 }, Vec::new())
    });
    for name in ["", "http://foo", "foo/", "foo:80", "::1", "[::1]", "a b", "a,b", "ö.example", "a@b", "{a}"] {
        let (grants, errors) = read_json(json!({"names": [name, "foo"]}));
        assert_eq!((grants.names, errors), (vec!["foo".to_owned()], vec!["/spec/grants/names/0".to_owned()]), "{name}");
    }
}

#[test]
fn fingerprints_are_read_with_and_without_colons() {
    let plain = "ab".repeat(32);
    let colons = vec!["AB"; 32].join(":");
    for text in [plain, colons] {
        let (grants, errors) =
            read_json(json!({"http": [{"networks": [], "ports": [], "tls": {"fingerprints": [text]}}]}));
        assert_eq!((grants.http[0].tls.clone(), errors.len()), (model::Tls::Fingerprints(vec![[0xab; 32]]), 0));
    }
}
