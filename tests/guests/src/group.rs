//! Multicast.

use std::time::Duration;

use crate::akri::discovery::multicast::{self, Conversation};
use crate::akri::discovery::types::AccessError;
use crate::behaviour::Group;
use crate::{Round, answer, device, hint, number};

const HOUR: u64 = 3_600_000_000_000;

pub(crate) fn discover(behaviour: Group, argument: &str) -> Round {
    Ok(vec![device(
        "group",
        match behaviour {
            Group::Ask => ask(argument),
            Group::WaitAnHour => vec![answer("HEARD", open(argument).and_then(|group| group.receive(HOUR, 1)))],
            Group::SendFlood => send_many(argument),
            Group::ReceiveFlood => receive_late(argument),
            Group::Conversations => vec![hint("HELD", &hold(argument).to_string())],
        },
    )])
}

/// `GROUP PORT`
fn open(argument: &str) -> Result<Conversation, AccessError> {
    let (group, port) = argument.split_once(' ').unwrap_or((argument, "0"));
    multicast::open(group, port.parse().unwrap_or(0))
}

/// Asks, and tells the first answer.
fn ask(argument: &str) -> Vec<(String, String)> {
    let opened = open(argument).and_then(|group| {
        group.send(b"Probe")?;
        group.receive(HOUR, 1)
    });
    match opened {
        Err(error) => vec![hint("ERROR", &format!("{error:?}"))],
        Ok(received) => received
            .iter()
            .flat_map(|d| {
                let text = String::from_utf8_lossy(&d.payload).into_owned();
                [hint("HEARD", &text), hint("FROM", &d.address), hint("INTERFACE", &d.interface)]
            })
            .collect(),
    }
}

fn send_many(argument: &str) -> Vec<(String, String)> {
    let Ok(group) = open(argument) else { return vec![hint("SENT", "not open")] };
    let large = answer("LARGE", group.send(&[0; 60_000]));
    let sent = (0..100_000).map_while(|_| group.send(b"x").ok()).count();
    drop(group);
    let again = open(argument).map(|group| (0..100_000).map_while(|_| group.send(b"x").ok()).count());
    vec![large, hint("SENT", &sent.to_string()), hint("AGAIN", &format!("{again:?}"))]
}

/// Asks, lets a flood come in, and then looks at it.
fn receive_late(argument: &str) -> Vec<(String, String)> {
    let Ok(group) = open(argument) else { return vec![hint("HEARD", "not open")] };
    group.send(b"flood").unwrap();
    while group.dropped() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut received = 0;
    loop {
        let page = group.receive(0, u32::MAX).unwrap();
        if page.is_empty() {
            return vec![hint("HEARD", &received.to_string()), hint("DROPPED", &group.dropped().to_string())];
        }
        received += page.len();
    }
}

/// `COUNT GROUP PORT`: as many conversations as it gets.
fn hold(argument: &str) -> usize {
    let (count, group) = argument.split_once(' ').unwrap_or(("1", argument));
    let held: Vec<_> = (0..number(count, 1)).map_while(|_| open(group).ok()).collect();
    held.len()
}
