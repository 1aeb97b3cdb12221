use std::collections::BTreeMap;

use super::*;

const CAMERA: &str = "6821dc67-8438-5588-1547-4d1349048438";

/// `!` before a value: it may not be seen.
struct Properties(BTreeMap<&'static str, &'static str>);

impl Source for Properties {
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        match self.0.get(name) {
            Some(value) if value.starts_with('!') => Err("it is not granted".to_owned()),
            value => Ok(value.map(|value| value.as_bytes().to_vec())),
        }
    }
}

fn read(properties: &[(&'static str, &'static str)]) -> (Store<Properties>, Vec<String>) {
    let (store, errors) = Store::read(Properties(properties.iter().copied().collect()));
    (store, errors.iter().map(CredentialsError::to_string).collect())
}

fn find(store: &Store<Properties>, uuid: &str) -> Option<(String, String)> {
    let found = store.find(uuid).unwrap();
    found.map(|credentials| (credentials.username, credentials.password))
}

fn pair(username: &str, password: &str) -> Option<(String, String)> {
    Some((username.to_owned(), password.to_owned()))
}

const LIST: [(&str, &str); 2] = [
    ("device_credential_list", r#"["list"]"#),
    (
        "list",
        r#"{"6821DC67-8438-5588-1547-4D1349048438": {"username": "list", "password": "cGFzcw==", "base64encoded": true},
            "5f5a69c2-e0ae-504f-829b-00fcdab169cc": {"username": "plain", "password": "cGFzcw=="},
            "7a21dd67-8438-5588-1547-4d1349048438": {"username": "open", "password": null, "base64encoded": null}}"#,
    ),
];
const REFERENCES: [(&str, &str); 4] = [
    ("device_credential_ref_list", r#"["references"]"#),
    (
        "references",
        r#"{"6821dc67-8438-5588-1547-4d1349048438": {"username_ref": "name1", "password_ref": "word1"},
            "7a21dd67-8438-5588-1547-4d1349048438": {"username_ref": "name1"}}"#,
    ),
    ("name1", "reference"),
    ("word1", "of the reference"),
];
const OWN: [(&str, &str); 2] = [
    ("username_6821dc67_8438_5588_1547_4d1349048438", "own"),
    ("password_6821dc67_8438_5588_1547_4d1349048438", "its own\r\n"),
];
const DEFAULTS: [(&str, &str); 2] = [("username_default", "admin\n"), ("password_default", "of all others")];

#[test]
fn no_properties_mean_no_credentials() {
    let (store, errors) = read(&[]);
    assert_eq!((find(&store, CAMERA), errors.len()), (None, 0));
}

#[test]
fn list_has_credentials_by_uuid() {
    let (store, errors) = read(&LIST);
    assert_eq!(errors, [""; 0]);
    assert_eq!(find(&store, CAMERA), pair("list", "pass"));
    assert_eq!(find(&store, "5f5a69c2-e0ae-504f-829b-00fcdab169cc"), pair("plain", "cGFzcw=="));
    assert_eq!(find(&store, "7a21dd67-8438-5588-1547-4d1349048438"), pair("open", ""));
    assert_eq!(find(&store, "another"), None);
}

#[test]
fn list_of_references_names_other_properties() {
    let (store, errors) = read(&REFERENCES);
    assert_eq!(errors, [""; 0]);
    assert_eq!(find(&store, CAMERA), pair("reference", "of the reference"));
    assert_eq!(find(&store, "7a21dd67-8438-5588-1547-4d1349048438"), pair("reference", ""));
}

#[test]
fn most_specific_credentials_win() {
    let all = [&DEFAULTS[..], &LIST, &REFERENCES, &OWN].concat();
    assert_eq!(find(&read(&all).0, CAMERA), pair("own", "its own"));
    assert_eq!(find(&read(&all[..8]).0, CAMERA), pair("reference", "of the reference"));
    assert_eq!(find(&read(&all[..4]).0, CAMERA), pair("list", "pass"));
    assert_eq!(find(&read(&all[..2]).0, CAMERA), pair("admin", "of all others"));
    assert_eq!(find(&read(&all).0, "another"), pair("admin", "of all others"));
}

#[test]
fn list_may_hold_the_default() {
    let (store, _) = read(&[
        ("device_credential_list", r#"["list"]"#),
        ("list", r#"{"default": {"username": "a", "password": "b"}}"#),
    ]);
    assert_eq!(find(&store, "another"), pair("a", "b"));
}

#[test]
fn references_other_than_uuids_map_to_property_names() {
    let (store, _) = read(&[("username_http___10_0_0_1_x", "a")]);
    assert_eq!(find(&store, "http://10.0.0.1/x"), pair("a", ""));
}

#[test]
fn errors_are_named_without_the_content() {
    let hidden = "hunter2";
    for (properties, message) in [
        (
            &[("device_credential_list", "hunter2")][..],
            "the property 'device_credential_list' is not a JSON list of names of properties (line 1, column 1)",
        ),
        (&[("device_credential_list", r#"["a"]"#)], "there is no property 'a', which 'device_credential_list' names"),
        (
            &[("device_credential_list", r#"["a"]"#), ("a", "{\"x\":\n \"hunter2\"}")],
            "the property 'a' is not a JSON object from UUID to username, password and base64encoded (line 2, column 10)",
        ),
        (
            &[("device_credential_list", r#"["a"]"#), ("a", r#"{"x": {"username": "u", "hunter2": "p"}}"#)],
            "the property 'a' is not a JSON object from UUID to username, password and base64encoded (line 1, column 33)",
        ),
        (
            &[("device_credential_ref_list", r#"["a"]"#), ("a", r#"["hunter2"]"#)],
            "the property 'a' is not a JSON object from UUID to username_ref and password_ref (line 1, column 0)",
        ),
    ] {
        let (_, errors) = read(properties);
        assert_eq!(errors, [message]);
        assert!(!errors.concat().contains(hidden));
    }
}

#[test]
fn bad_list_keeps_the_others() {
    let (store, errors) = read(&[
        ("device_credential_list", r#"["missing", "good"]"#),
        ("good", r#"{"a": {"username": "u", "password": "p"}}"#),
        ("device_credential_ref_list", "{"),
    ]);
    assert_eq!((find(&store, "a"), errors.len()), (pair("u", "p"), 2));
}

#[test]
fn unreadable_credentials_are_reported_per_camera() {
    let (store, errors) = read(&[
        ("device_credential_list", r#"["entries"]"#),
        (
            "entries",
            r#"{"a": {"username": "u", "password": "hunter2", "base64encoded": true}, "good": {"username": "u"}}"#,
        ),
        ("device_credential_ref_list", r#"["references"]"#),
        ("references", r#"{"b": {"username_ref": "gone"}, "c": {"username_ref": "hidden"}}"#),
        ("hidden", "!"),
        ("username_d", "u"),
        ("password_d", "!"),
        ("username_default", "all"),
    ]);
    assert_eq!(errors, [""; 0]);
    let error = |uuid: &str| store.find(uuid).map(|_| ()).unwrap_err().to_string();
    assert_eq!(error("a"), "the password of 'a' in the property 'entries' is not in base64, or not UTF-8 in it");
    assert_eq!(error("b"), "there is no property 'gone', which 'references' names");
    assert_eq!(error("c"), "the property 'hidden' can't be read: it is not granted");
    assert_eq!(error("d"), "the property 'password_d' can't be read: it is not granted");
    assert_eq!([find(&store, "good"), find(&store, "another")], [pair("u", ""), pair("all", "")]);
}

#[test]
fn ungranted_optional_property_is_no_error() {
    let (store, errors) = read(&[
        ("device_credential_list", "!"),
        ("device_credential_ref_list", "!"),
        ("username_a", "!"),
        ("username_default", "all"),
    ]);
    assert_eq!((find(&store, "a"), errors.len()), (pair("all", ""), 0));
}
