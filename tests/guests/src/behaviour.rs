//! The behaviours of the guest, chosen by the first word of its details; the text after a colon is the argument.
//!
//! This file is compiled twice: into the guest, which has to do each of them, and into the tests of the engine, which have
//! to name a test for each. Both match on all of them, so that one without a deed or without a test does not compile.

macro_rules! behaviours {
    ($($(#[$meta:meta])* $group:ident { $($behaviour:ident $word:literal,)+ })+) => {
        $($(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $group { $($behaviour),+ }

        impl $group {
            /// The one of that name.
            pub fn of(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$behaviour),)+
                    _ => None,
                }
            }
        })+
    };
}

behaviours! {
    /// Behaviours of a good handler.
    Good {
        Devices "devices",
        Everything "everything",
        MissingNode "missing-node",
        Properties "properties",
        DetailsJson "details-json",
        Remaining "remaining",
        Keep "keep",
        Note "note",
        Log "log",
        Udev "udev",
        Unavailable "unavailable",
        NotGranted "not-granted",
    }
    /// Behaviours that take too long, too much, or the wrong turn.
    Hostile {
        Loop "loop",
        ImportLoop "import-loop",
        Sleep "sleep",
        Panic "panic",
        Exit "exit",
        Stack "stack",
        Memory "memory",
        LogFlood "log-flood",
        StdoutFlood "stdout-flood",
        StderrFlood "stderr-flood",
        NoteFlood "note-flood",
        KeepFlood "keep-flood",
        Resources "resources",
        WideQuery "wide-query",
        BigArgument "big-argument",
        HugeString "huge-string",
        LongValue "long-value",
        ManyProperties "many-properties",
        AliasedStrings "aliased-strings",
        DuplicateIds "duplicate-ids",
        EmptyId "empty-id",
        EscapingPaths "escaping-paths",
    }
    /// Behaviours that try to use something that was not granted.
    Reach {
        Environment "environment",
        Network "network",
        Capabilities "capabilities",
    }
    /// Requests by `wasi:http`.
    Web {
        Get "get",
        Follow "follow",
        Post "post",
        GetMany "get-many",
        Connect "connect",
        NoPath "no-path",
        HeaderFlood "header-flood",
        LongMethod "long-method",
        LongTarget "long-target",
        Abandon "abandon",
    }
    /// Sockets by `wasi:sockets`, as the standard library uses them.
    Net {
        Tcp "tcp",
        Listen "listen",
        Udp "udp",
        UdpBounce "udp-bounce",
        SocketFlood "socket-flood",
        SocketReuse "socket-reuse",
        Resolve "resolve",
        ResolveFlood "resolve-flood",
    }
    /// Multicast.
    Group {
        Ask "ask",
        WaitAnHour "wait-an-hour",
        SendFlood "send-flood",
        ReceiveFlood "receive-flood",
        Conversations "conversations",
    }
    /// Secrets, and what to remember.
    Keep {
        Reveal "reveal",
        Leak "leak",
        LeakLater "leak-later",
        WriteCache "write-cache",
        WriteCacheAndFail "write-cache-and-fail",
        ReadCache "read-cache",
        CacheFlood "cache-flood",
    }
}
