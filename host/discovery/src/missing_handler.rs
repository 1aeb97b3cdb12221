//! The reasons why a Configuration has no handler (rule 123). A condition has little room for what a node says: what concerns the name
//! comes first, and the rest is short.

use akri_api::suggestion::did_you_mean;

use crate::registry::Handlers;

/// Returns the reason, as far as the objects that claim the name tell it.
pub(crate) fn describe(name: &str, handlers: &Handlers) -> String {
    let mut message = format!("no discovery handler '{name}'");
    for (object, step) in handlers.loading.iter().filter(|(object, _)| handlers.is_claimed_by(name, object)) {
        message.push_str(&format!("; DiscoveryHandler {object}: {step}"));
    }
    for (object, why) in handlers.refused.iter().filter(|(object, _)| handlers.is_claimed_by(name, object)) {
        message.push_str(&format!("; DiscoveryHandler {object} was refused: {}", why.message));
    }
    message
}

/// Returns the reason that the registrations of remote handlers tell: none is needed where an object claims the name.
pub(crate) fn describe_registration(name: &str, handlers: &Handlers, refusal: Option<&str>, socket: &str) -> String {
    match refusal {
        Some(reason) => format!("; one of that name was refused: {reason} (at {socket})"),
        None if handlers.names.contains_key(name) => String::new(),
        None => format!("; none of that name has registered at {socket}"),
    }
}

/// Returns the state of all other handlers.
pub(crate) fn describe_others(name: &str, handlers: &Handlers) -> String {
    let ready = handlers.ready.keys().cloned().collect();
    let is_other = |object: &&String| !handlers.is_claimed_by(name, object);
    let loading = handlers.loading.keys().filter(is_other).cloned().collect();
    let refused = handlers.refused.iter().filter(|(object, _)| is_other(object));
    let refused = refused.map(|(object, why)| format!("{object} ({})", why.reason)).collect();
    let list = |what, names: Vec<String>| (!names.is_empty()).then(|| format!("; {what}: {}", names.join(", ")));
    let similar = did_you_mean(name, handlers.ready.keys().map(String::as_str));
    let ready = list("ready", ready).map_or_else(|| "; none is ready".to_owned(), |ready| ready + &similar);
    [Some(ready), list("being loaded", loading), list("refused", refused)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use akri_model::handler_names::NameService;

    use super::*;
    use crate::registry::Refused;

    #[test] // rule 123
    fn reason_of_the_name_comes_before_the_others() {
        let refused = |reason, message: &str| Refused::new(reason, message.to_owned());
        let claims = [("mine", "cam"), ("other", "udev")].map(|(object, name)| (object.to_owned(), name.to_owned()));
        let handlers = Handlers {
            claims: claims.into(),
            refused: [
                ("mine".to_owned(), refused("FileMissing", "there is no mine.wasm")),
                ("other".to_owned(), refused("NameMismatch", "a long sentence")),
            ]
            .into(),
            names: [("cam".to_owned(), NameService::Refused)].into(),
            ..Handlers::default()
        };
        let message = |name: &str, refusal| {
            let registration = describe_registration(name, &handlers, refusal, "/s");
            describe(name, &handlers) + &registration + &describe_others(name, &handlers)
        };
        assert_eq!(
            message("cam", None),
            "no discovery handler 'cam'; DiscoveryHandler mine was refused: there is no mine.wasm; none is ready; refused: other \
             (NameMismatch)"
        );
        assert_eq!(
            message("onvif", Some("10.2.0.7:1 is in no allowed network")),
            "no discovery handler 'onvif'; one of that name was refused: 10.2.0.7:1 is in no allowed network (at /s); none is ready; \
             refused: mine (FileMissing), other (NameMismatch)"
        );
        assert!(
            message("onvif", None)
                .starts_with("no discovery handler 'onvif'; none of that name has registered at /s; none")
        );
    }
}
