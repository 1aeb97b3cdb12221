//! The test of each behaviour: a behaviour without one does not compile.

use super::behaviour::{Good, Group, Hostile, Keep, Net, Reach, Web};
use super::{bad, good, group, keep, net, web};

type Test = fn();

fn good(behaviour: Good) -> Test {
    match behaviour {
        Good::Devices => good::every_device_arrives_in_order,
        Good::Everything => good::device_arrives_complete,
        Good::MissingNode => good::last_of_two_properties_counts,
        Good::Properties => good::properties_are_those_of_the_call,
        Good::DetailsJson => good::details_come_as_json_too,
        Good::Remaining => good::time_left_is_less_than_the_limit,
        Good::Keep | Good::Note => good::kept_origins_and_notes_come_with_the_devices,
        Good::Log => good::output_of_a_guest_is_in_the_log,
        Good::Udev => good::udev_shows_what_is_granted,
        Good::Unavailable | Good::NotGranted => good::errors_of_the_handler_are_distinguished,
    }
}

fn hostile(behaviour: Hostile) -> Test {
    match behaviour {
        Hostile::Loop | Hostile::ImportLoop | Hostile::Sleep => bad::guest_that_does_not_end_is_ended,
        Hostile::Panic => bad::panic_is_reported_in_the_words_of_the_guest,
        Hostile::Exit => bad::exit_is_a_trap,
        Hostile::Stack => bad::endless_recursion_is_a_trap,
        Hostile::LogFlood | Hostile::StdoutFlood => bad::log_lines_beyond_the_bound_are_counted,
        Hostile::StderrFlood => bad::flood_without_line_ends_is_one_line,
        Hostile::NoteFlood => bad::notes_beyond_the_bound_are_counted,
        Hostile::WideQuery => bad::query_that_is_too_wide_is_answered_with_its_limit,
        Hostile::EscapingPaths => bad::paths_reach_the_agent_unchanged,
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
        Web::Get => web::granted_server_answers,
        Web::Follow => web::redirect_is_left_to_the_guest_and_checked_again,
        Web::Post => web::bodies_are_bounded_both_ways,
        Web::GetMany => web::of_a_thousand_requests_a_host_gets_four_at_once,
        Web::Connect => web::tunnel_is_no_request,
        Web::NoPath => web::refused_requests_do_not_fill_the_log,
        Web::HeaderFlood => web::headers_are_bounded,
        Web::LongMethod | Web::LongTarget => web::parts_of_a_request_are_bounded,
        Web::Abandon => web::silent_server_times_out_before_the_round,
    }
}

fn net(behaviour: Net) -> Test {
    match behaviour {
        Net::Tcp => net::tcp_goes_where_it_is_granted,
        Net::Listen => net::nobody_connects_to_a_guest,
        Net::Udp => net::udp_goes_to_and_comes_from_granted_addresses,
        Net::UdpBounce => net::reflected_datagram_does_not_arrive,
        Net::SocketFlood | Net::SocketReuse => net::sockets_are_bounded_and_a_closed_one_makes_room,
        Net::Resolve | Net::ResolveFlood => net::only_granted_names_are_resolved_and_a_bounded_number,
    }
}

fn group(behaviour: Group) -> Test {
    match behaviour {
        Group::Ask => group::granted_group_is_asked_and_answers,
        Group::WaitAnHour => group::host_waits_end_before_the_round,
        Group::SendFlood => group::datagrams_are_bounded_in_number_and_size,
        Group::ReceiveFlood => group::flood_fills_the_queue_and_no_more,
        Group::Conversations => group::conversations_are_bounded,
    }
}

fn keep(behaviour: Keep) -> Test {
    match behaviour {
        Keep::Reveal => keep::secret_is_shown_by_grant_and_each_time_is_counted,
        Keep::Leak => keep::device_with_a_secret_in_it_is_withheld,
        Keep::LeakLater => keep::cached_secret_is_withheld_later,
        Keep::WriteCache | Keep::ReadCache => keep::cached_value_is_there_in_the_next_round,
        Keep::WriteCacheAndFail => keep::cache_of_a_failed_round_is_dropped,
        Keep::CacheFlood => keep::cache_is_bounded,
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
