//! The test of each behaviour: a behaviour without one does not compile.

use super::behaviour::{Good, Group, Hostile, Keep, Net, Reach, Web};
use super::{bad, good, group, keep, net, web};

type Test = fn();

fn good(behaviour: Good) -> Test {
    match behaviour {
        Good::Devices => good::every_device_arrives_in_order,
        Good::Everything => good::a_device_arrives_whole,
        Good::Properties => good::properties_are_those_of_the_call,
        Good::DetailsJson => good::details_come_as_json_too,
        Good::Remaining => good::the_time_left_is_less_than_the_limit,
        Good::Keep | Good::Note => good::kept_origins_and_notes_come_with_the_devices,
        Good::Log => good::what_a_guest_writes_is_in_the_log,
        Good::Udev => good::udev_shows_what_is_granted,
        Good::Unavailable | Good::NotGranted => good::errors_of_the_handler_are_told_apart,
    }
}

fn hostile(behaviour: Hostile) -> Test {
    match behaviour {
        Hostile::Loop | Hostile::ImportLoop | Hostile::Sleep => bad::a_guest_that_does_not_end_is_ended,
        Hostile::Panic => bad::a_panic_is_told_in_the_guest_s_words,
        Hostile::Exit => bad::an_exit_is_a_trap,
        Hostile::Stack => bad::endless_recursion_is_a_trap,
        Hostile::LogFlood | Hostile::StdoutFlood => bad::log_lines_beyond_the_bound_are_counted,
        Hostile::StderrFlood => bad::a_flood_without_line_ends_is_one_line,
        Hostile::NoteFlood => bad::notes_beyond_the_bound_are_counted,
        Hostile::WideQuery => bad::a_query_that_is_too_wide_is_answered_with_its_limit,
        Hostile::EscapingPaths => bad::paths_are_handed_on_as_they_are_to_be_judged,
        Hostile::Memory
        | Hostile::KeepFlood
        | Hostile::Resources
        | Hostile::BigArgument
        | Hostile::HugeString
        | Hostile::LongValue
        | Hostile::ManyProperties
        | Hostile::AliasedStrings
        | Hostile::DuplicateIds
        | Hostile::EmptyId => bad::too_much_is_refused_by_name,
    }
}

fn reach(behaviour: Reach) -> Test {
    match behaviour {
        Reach::Environment => good::wasi_is_empty_but_for_the_clocks,
        Reach::Network => good::there_is_no_network,
        Reach::Capabilities => good::capabilities_without_a_grant_refuse,
    }
}

fn web(behaviour: Web) -> Test {
    match behaviour {
        Web::Get => web::a_granted_server_answers,
        Web::Follow => web::a_redirect_is_the_guest_s_to_follow_and_is_checked_again,
        Web::Post => web::bodies_are_bounded_both_ways,
        Web::GetMany => web::of_a_thousand_requests_a_host_gets_four_at_once,
        Web::Connect => web::a_tunnel_is_no_request,
        Web::NoPath => web::refused_requests_do_not_fill_the_log,
        Web::HeaderFlood => web::headers_are_bounded,
        Web::LongMethod | Web::LongTarget => web::what_a_request_is_made_of_is_bounded,
        Web::Abandon => web::silent_server_times_out_before_the_round,
    }
}

fn net(behaviour: Net) -> Test {
    match behaviour {
        Net::Tcp => net::tcp_goes_where_it_is_granted,
        Net::Listen => net::nobody_connects_to_a_guest,
        Net::Udp => net::udp_goes_to_and_comes_from_granted_addresses,
        Net::UdpBounce => net::a_reflected_datagram_does_not_arrive,
        Net::SocketFlood | Net::SocketReuse => net::sockets_are_bounded_and_a_closed_one_makes_room,
        Net::Resolve | Net::ResolveFlood => net::only_granted_names_are_resolved_and_a_bounded_number,
    }
}

fn group(behaviour: Group) -> Test {
    match behaviour {
        Group::Ask => group::a_granted_group_is_asked_and_answers,
        Group::WaitAnHour => group::host_waits_end_before_the_round,
        Group::SendFlood => group::datagrams_are_bounded_in_number_and_size,
        Group::ReceiveFlood => group::a_flood_fills_the_queue_and_no_more,
        Group::Conversations => group::conversations_are_bounded,
    }
}

fn keep(behaviour: Keep) -> Test {
    match behaviour {
        Keep::Reveal => keep::a_secret_is_shown_by_grant_and_each_time_is_counted,
        Keep::Leak => keep::a_device_with_a_secret_in_it_is_withheld,
        Keep::LeakLater => keep::a_secret_that_was_remembered_is_withheld_later,
        Keep::WriteCache | Keep::ReadCache => keep::what_a_round_remembers_the_next_one_recalls,
        Keep::WriteCacheAndFail => keep::what_a_round_that_did_not_return_remembers_is_dropped,
        Keep::CacheFlood => keep::the_cache_is_bounded,
    }
}

// That they compile is what they are for.
const _: fn(Good) -> Test = good;
const _: fn(Hostile) -> Test = hostile;
const _: fn(Reach) -> Test = reach;
const _: fn(Web) -> Test = web;
const _: fn(Net) -> Test = net;
const _: fn(Group) -> Test = group;
const _: fn(Keep) -> Test = keep;
