use super::*;

fn endpoint(handler: &str, path: &str) -> Endpoint {
    Endpoint { handler: handler.to_owned(), address: Address::Unix(path.to_owned()) }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn user(name: &str) -> Key {
    Key::new("default", name)
}

fn alive(_: &Address) -> bool {
    false
}

/// These endpoints, used by the Configurations `c` and `d`.
fn registered(endpoints: &[&Endpoint]) -> Endpoints {
    let mut all = Endpoints::default();
    for endpoint in endpoints {
        all.register((*endpoint).clone(), false, at(0), alive).unwrap();
        ["c", "d"].iter().for_each(|name| all.add_user(endpoint, &user(name)));
    }
    all
}

#[test] // rule 31
fn endpoint_goes_through_its_states() {
    let one = endpoint("cam", "/a");
    let mut all = registered(&[&one]);
    let state = |all: &Endpoints| all.get(&one).map(|record| (record.state, record.since));
    assert_eq!(state(&all), Some((EndpointState::Waiting, at(0))));
    all.set_connected(&one, &user("c"), Some(true), at(1));
    assert_eq!(state(&all), Some((EndpointState::Active, at(1))));
    all.set_connected(&one, &user("d"), Some(false), at(2));
    assert_eq!(state(&all), Some((EndpointState::Active, at(1))), "one Configuration reaches it");
    all.set_connected(&one, &user("c"), Some(false), at(3));
    all.set_connected(&one, &user("c"), Some(false), at(4));
    assert_eq!(state(&all), Some((EndpointState::Offline, at(3))), "further failures don't start the time anew");
    all.register(one.clone(), false, at(5), alive).unwrap();
    assert_eq!(state(&all), Some((EndpointState::Waiting, at(5))));
    all.set_connected(&one, &user("c"), Some(true), at(6));
    all.remove_user(&one, &user("c"), at(7));
    all.remove_user(&one, &user("d"), at(8));
    assert_eq!(state(&all), Some((EndpointState::Waiting, at(7))), "nobody uses it");
    all.set_connected(&one, &user("c"), Some(true), at(9));
    all.record_result(&one, &user("c"), Ok(1));
    assert_eq!(all.get(&one).unwrap().devices(), 0, "who has released it is late");
    assert_eq!(state(&all), Some((EndpointState::Waiting, at(7))));
}

#[test] // rule 31
fn only_what_is_offline_is_forgotten() {
    let (one, other) = (endpoint("cam", "/a"), endpoint("cam", "/b"));
    let mut all = registered(&[&one, &other]);
    assert_eq!((all.offline_since(), all.forget(at(1000))), (None, Vec::new()));
    all.set_connected(&one, &user("c"), Some(false), at(10));
    assert_eq!(all.offline_since(), Some(at(10)));
    assert_eq!(all.forget(at(9)), []);
    assert_eq!(all.forget(at(10)), [one]);
    assert_eq!(all.iter().count(), 1);
}

#[test] // rule 31
fn registering_again_replaces_and_counts() {
    let one = endpoint("cam", "/a");
    let mut all = registered(&[&one, &one]);
    assert_eq!(all.iter().count(), 1);
    assert_eq!(all.get(&one).unwrap().registrations, 2);
    assert_eq!(["c", "d", "e"].map(|name| all.get(&one).unwrap().has_user(&user(name))), [true, true, false]);
    all.register(one.clone(), true, at(1), alive).unwrap();
    assert!(all.get(&one).unwrap().shared, "there is nobody else to disagree");
}

#[test] // rule 31
fn endpoints_of_one_handler_agree_about_shared() {
    let mut all = registered(&[&endpoint("cam", "/a")]);
    let refusal = all.register(endpoint("cam", "/b"), true, at(0), alive).unwrap_err();
    assert_eq!(refusal.to_string(), "'cam' is registered as shared=true, but unix:/a serves it as shared=false");
    assert!(all.register(endpoint("other", "/b"), true, at(0), alive).is_ok());
    all.restore(endpoint("cam", "/c"), true, at(0));
    all.restore(endpoint("cam", "/d"), false, at(0));
    assert_eq!(all.of("cam").count(), 2);
    let is_dead = |address: &Address| *address != Address::Unix("/d".to_owned());
    assert!(all.register(endpoint("cam", "/b"), true, at(0), is_dead).is_err());
    let all_dead = |_: &Address| true;
    assert_eq!(all.register(endpoint("cam", "/b"), true, at(0), all_dead), Ok(()), "nobody can reach the others");
    assert_eq!(all.of("cam").count(), 1);
}

#[test]
fn absurd_names_are_refused() {
    for name in ["", " ", "a b", "a\n", "\u{1b}[2J", &"x".repeat(254)] {
        assert_eq!(registered(&[]).register(endpoint(name, "/a"), false, at(0), alive), Err(RegistrationRefusal::Name));
    }
    assert!(is_handler_name("debugEcho") && is_handler_name("my.handler_2/x") && is_handler_name("kamera-ä"));
}

#[test] // rule 31
fn there_are_at_most_so_many() {
    let mut all = Endpoints::default();
    for n in 0..10_000 {
        let result = all.register(endpoint(&format!("h{n}"), "/a"), false, at(0), alive);
        assert_eq!(result.is_ok(), n < MAX_ENDPOINTS, "{n} {result:?}");
    }
    all.restore(endpoint("late", "/a"), false, at(0));
    assert_eq!(all.iter().count(), MAX_ENDPOINTS);
    let mut all = Endpoints::default();
    for n in 0..100 {
        let result = all.register(endpoint("h", &format!("/{n}")), false, at(0), alive);
        assert_eq!(result.is_ok(), n < MAX_OF_ONE_HANDLER, "{n} {result:?}");
    }
}

#[test] // rule 31
fn useless_endpoints_make_room() {
    let many: Vec<Endpoint> = (0..MAX_OF_ONE_HANDLER).map(|n| endpoint("h", &format!("/{n}"))).collect();
    let mut all = registered(&many.iter().collect::<Vec<_>>());
    all.set_connected(&many[3], &user("c"), Some(false), at(2));
    all.set_connected(&many[5], &user("c"), Some(false), at(1));
    all.register(endpoint("h", "/new"), false, at(3), alive).unwrap();
    assert!(all.get(&many[5]).is_none() && all.get(&many[3]).is_some(), "the one that was offline for longest");
    all.register(endpoint("h", "/newer"), false, at(3), alive).unwrap();
    let is_dead = |address: &Address| *address == Address::Unix("/1".to_owned());
    assert!(all.register(endpoint("h", "/newest"), false, at(3), alive).is_err());
    all.register(endpoint("h", "/newest"), false, at(3), is_dead).unwrap();
    assert!(all.get(&many[1]).is_none());
}

#[test] // rule 31
fn pods_that_nobody_has_tried_make_room() {
    let pod = |host: usize| {
        let address = Address::Network(([10, 0, 0, u8::try_from(host).unwrap()], 80).into());
        Endpoint { handler: "h".to_owned(), address }
    };
    let mut all = registered(&[&pod(0)]);
    for (time, host) in (1..=MAX_OF_ONE_HANDLER + 1).enumerate() {
        all.register(pod(host), false, at(time as u64), alive).unwrap();
    }
    let kept = all.iter().map(|(endpoint, _)| endpoint.clone()).collect::<Vec<_>>();
    assert_eq!(
        kept,
        [0].into_iter().chain(3..=MAX_OF_ONE_HANDLER + 1).map(pod).collect::<Vec<_>>(),
        "the used, and new ones"
    );
    assert!(all.register(pod(99), true, at(99), alive).is_err());
    all.remove_user(&pod(0), &user("c"), at(99));
    all.remove_user(&pod(0), &user("d"), at(99));
    all.register(pod(99), true, at(99), alive).unwrap();
    assert_eq!(all.iter().count(), 1, "the others differ in `shared`");
}

#[test]
fn devices_are_those_of_the_last_message_to_each_configuration() {
    let one = endpoint("cam", "/a");
    let mut all = registered(&[&one]);
    all.record_result(&one, &user("c"), Ok(3));
    all.record_result(&one, &user("c"), Ok(2));
    all.record_result(&one, &user("d"), Ok(5));
    all.record_result(&one, &user("c"), Err("too many devices".to_owned()));
    let record = all.get(&one).unwrap();
    assert_eq!((record.devices(), &record.last_result), (7, &Some(Err("too many devices".to_owned()))));
    all.set_connected(&one, &user("c"), Some(true), at(1));
    assert_eq!(all.get(&one).unwrap().last_result, None, "what went wrong is over");
    all.remove_user(&one, &user("d"), at(1));
    assert_eq!(all.get(&one).unwrap().devices(), 2);
}

#[test] // rule 123
fn refusal_lasts_until_the_handler_registers() {
    let mut all = Endpoints::default();
    let refuse = |all: &mut Endpoints, name: &str, reason: &str| all.record_refusal(name, reason.to_owned());
    refuse(&mut all, "cam", "first");
    refuse(&mut all, "cam", "second");
    refuse(&mut all, "no name", "x");
    assert_eq!((all.refusal("cam"), all.refusal("no name"), all.refusal("other")), (Some("second"), None, None));
    all.register(endpoint("other", "/o"), false, at(0), alive).unwrap();
    assert_eq!(all.refusal("cam"), Some("second"), "another handler has registered");
    all.register(endpoint("cam", "/a"), false, at(0), alive).unwrap();
    assert_eq!(all.refusal("cam"), None);
    (0..=MAX_ENDPOINTS).for_each(|number| refuse(&mut all, &format!("h{number}"), "x"));
    assert_eq!(all.refusal(&format!("h{MAX_ENDPOINTS}")), None, "nobody fills the memory");
}
