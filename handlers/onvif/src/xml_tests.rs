use proptest::prelude::*;

use super::*;

fn parsed(text: &str) -> Element {
    parse(text.as_bytes()).unwrap()
}

fn refused(text: &str) -> XmlError {
    parse(text.as_bytes()).unwrap_err()
}

#[test]
fn names_are_read_with_any_prefix() {
    for text in [
        "<a xmlns='urn:x' y='1'> t <b>u</b></a>",
        "<p:a xmlns:p='urn:x' y='1'> t <p:b>u</p:b></p:a>",
        "<q:a xmlns:q='urn:x' y='1'> t <r:b xmlns:r='urn:x'>u</r:b></q:a>",
    ] {
        let a = parsed(text);
        assert_eq!((a.namespace.as_str(), a.name.as_str(), a.text()), ("urn:x", "a", "t"), "{text}");
        assert_eq!(a.attribute("y"), Some("1"));
        assert_eq!(a.text_at(&["b"]), Some("u"));
        assert_eq!(a.child("b").unwrap().namespace, "urn:x");
    }
}

#[test]
fn text_is_joined_from_all_parts() {
    let a = parsed("<?xml version='1.0'?><!-- c --><a>1&lt;&#50;<![CDATA[<3>]]><?pi?>&amp;4</a>\r\n\0\0");
    assert_eq!(a.text(), "1<2<3>&4");
    assert_eq!(parsed("<a x='&quot;&#65;'/>").attribute("x"), Some("\"A"));
    assert_eq!(parsed("\u{feff}<a/>").name, "a");
}

#[test]
fn empty_text_is_none() {
    let a = parsed("<a><b> \n</b><c/></a>");
    assert_eq!([a.text_at(&["b"]), a.text_at(&["c"]), a.text_at(&["d"]), a.text_at(&["b", "d"])], [None; 4]);
}

#[test]
fn qualified_types_are_expanded() {
    let types = |text| parsed(text).text_at(&["Types"]).unwrap().to_owned();
    assert_eq!(types("<a xmlns:n='urn:n'><Types>n:One n:Two</Types></a>"), "{urn:n}One {urn:n}Two");
    assert_eq!(types("<a><Types xmlns:z='urn:n'>\n z:One\n</Types></a>"), "{urn:n}One");
    assert_eq!(types("<a xmlns='urn:d'><Types>One nobody:Two</Types></a>"), "{urn:d}One {}Two");
}

#[test]
fn malformed_documents_are_refused() {
    for text in ["", "x", "<a>", "<a></b>", "</a>", "<a/><b/>", "<a/>x", "<a b></a>", "<a><!--</a>", "<a>&#xd800;</a>"]
    {
        assert_eq!(refused(text), XmlError::Malformed, "{text}");
    }
    assert_eq!(parse(b"<a>\xff</a>"), Err(XmlError::Encoding));
    assert_eq!(parse(&[0xff, 0xfe, b'<', 0, b'a', 0, b'/', 0, b'>', 0]), Err(XmlError::Encoding));
}

#[test]
fn entity_expansion_is_refused() {
    let bomb = "<!DOCTYPE a [<!ENTITY b 'boom'><!ENTITY c '&b;&b;&b;&b;'>]><a>&c;</a>";
    assert_eq!(refused(bomb), XmlError::DocType);
    assert_eq!(refused("<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>"), XmlError::DocType);
    assert_eq!(refused("<a>&c;</a>"), XmlError::Entity);
    assert_eq!(refused("<a b='&c;'/>"), XmlError::Entity);
}

#[test]
fn depth_and_number_of_elements_are_bounded() {
    let nested = |depth: usize| format!("{}{}", "<a>".repeat(depth), "</a>".repeat(depth));
    assert_eq!(parsed(&nested(MAX_DEPTH)).name, "a");
    assert_eq!(refused(&nested(MAX_DEPTH + 1)), XmlError::TooLarge);
    assert_eq!(refused(&"<a>".repeat(100_000)), XmlError::TooLarge);
    let wide = |count: usize| format!("<r>{}</r>", "<a/>".repeat(count));
    assert_eq!(parsed(&wide(MAX_ELEMENTS - 1)).children.len(), MAX_ELEMENTS - 1);
    assert_eq!(refused(&wide(MAX_ELEMENTS)), XmlError::TooLarge);
}

#[test]
fn long_namespaces_are_shared_between_elements() {
    let uri = "u".repeat(MAX_NAMESPACE + 1);
    let root = parsed(&format!("<p:r xmlns:p='{uri}'>{}<Types>p:A</Types></p:r>", "<p:a/>".repeat(1000)));
    assert!(root.children.iter().all(|child| child.namespace.is_empty()));
    assert_eq!(root.text_at(&["Types"]), Some("{}A"));
    let many = format!("<Types>{}</Types>", "a ".repeat(1000));
    assert_eq!(parsed(&many).text().split(' ').count(), MAX_NAMES);
}

#[test]
fn attributes_are_bounded_without_declarations() {
    let with = |count: usize, name: &str| {
        let attributes: String = (0..count).map(|number| format!(" {name}{number}=''")).collect();
        format!("<a{attributes}/>")
    };
    assert_eq!(parsed(&with(MAX_ATTRIBUTES, "a")).attributes.len(), MAX_ATTRIBUTES);
    assert_eq!(refused(&with(MAX_ATTRIBUTES + 1, "a")), XmlError::TooLarge);
    assert_eq!(refused(&with(20_000, "a")), XmlError::TooLarge);
    // Some cameras declare everything they know in each answer.
    assert_eq!(parsed(&with(100, "xmlns:n")).attributes, []);
    let many = format!("<r>{}</r>", "<a b='' c='' d=''/>".repeat(MAX_ELEMENTS / 4));
    assert_eq!(refused(&many), XmlError::TooLarge);
}

proptest! {
    #[test]
    fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn arbitrary_markup_causes_no_panic(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "<a>", "</a>", "<b:c xmlns:b='x'>", "</b:c>", "<", ">", "/", "&", ";", "&#x41;", "'", "\"", "=", "<![CDATA[",
                "]]>", "<!--", "-->", "<?", "?>", "<!DOCTYPE", "xmlns", "xmlns:", ":", "é", " ", "<Types>", "</Types>",
            ]),
            0..40,
        )
    ) {
        let _ = parse(parts.concat().as_bytes());
    }

    #[test]
    fn escaped_text_round_trips(text in "[ -~é\n]{0,40}") {
        let written = format!("<a>{}</a>", quick_xml::escape::escape(text.as_str()));
        let a = parsed(&written);
        prop_assert_eq!(a.text(), text.trim());
    }
}
