//! The ways in which the plugin can be wrong, one at a time.

use std::str::FromStr;

macro_rules! defects {
    ($($name:ident = $text:literal,)*) => {
        /// One way to be wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Defect {
            $($name,)*
        }

        impl FromStr for Defect {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$name),)*
                    _ => Err(format!("no such defect: {text}")),
                }
            }
        }
    };
}

defects! {
    None = "none",
    RegistersBeforeServing = "registers-before-serving",
    RegistersWithAWrongVersion = "registers-with-a-wrong-version",
    SocketElsewhere = "socket-elsewhere",
    Heartbeat = "heartbeat",
    EndsWithoutKubelet = "ends-without-kubelet",
    GivesUpWhenRefused = "gives-up-when-refused",
    CleansTheFolder = "cleans-the-folder",
    KeepsOldSocket = "keeps-old-socket",
    NeverRegistersAgain = "never-registers-again",
    LeaksDescriptors = "leaks-descriptors",
    DoesNotWatchItsSocket = "does-not-watch-its-socket",
    DoesNotWatchItsStream = "does-not-watch-its-stream",
    IdsInTwoResources = "ids-in-two-resources",
    ListsADeviceTwice = "lists-a-device-twice",
    LongIds = "long-ids",
    LowerCaseHealth = "lower-case-health",
    EmptyTopology = "empty-topology",
    OneStreamAtATime = "one-stream-at-a-time",
    Chatters = "chatters",
    HugeList = "huge-list",
    NewIdsEachStart = "new-ids-each-start",
    NewIdsEachRegistration = "new-ids-each-registration",
    LeaksStreams = "leaks-streams",
    UnreadStreamBlocks = "unread-stream-blocks",
    HidesFaults = "hides-faults",
    DropsFailedDevices = "drops-failed-devices",
    NeverRecovers = "never-recovers",
    TellsTheFirstStreamOnly = "tells-the-first-stream-only",
    AllocatesOnce = "allocates-once",
    GrantsAnything = "grants-anything",
    GrantsWhatItKnows = "grants-what-it-knows",
    AnswersTheFirstContainerOnly = "answers-the-first-container-only",
    DiesOfEmptyRequests = "dies-of-empty-requests",
    CountsTwice = "counts-twice",
    AnswersPerDevice = "answers-per-device",
    HangsInAllocate = "hangs-in-allocate",
    OneCallAtATime = "one-call-at-a-time",
    DiesOfCancelledCalls = "dies-of-cancelled-calls",
    NodesThatDoNotExist = "nodes-that-do-not-exist",
    OddPermissions = "odd-permissions",
    RelativeMounts = "relative-mounts",
    OddVariables = "odd-variables",
    OddAnnotations = "odd-annotations",
    OddCdiNames = "odd-cdi-names",
    CdiNamesWithoutDocuments = "cdi-names-without-documents",
    GrantsNothing = "grants-nothing",
    PrefersTooFew = "prefers-too-few",
    IgnoresMustInclude = "ignores-must-include",
    PrefersTheUnavailable = "prefers-the-unavailable",
    PrefersByOrder = "prefers-by-order",
    SlowPreference = "slow-preference",
    DiesOfOddQuestions = "dies-of-odd-questions",
    FailsBeforeStarts = "fails-before-starts",
    ChangesItsOptions = "changes-its-options",
    DiesOfUnknownCalls = "dies-of-unknown-calls",
    DiesOfGarbage = "dies-of-garbage",
    FewConnections = "few-connections",
    DiesOfCutConnections = "dies-of-cut-connections",
    IgnoresTheSignal = "ignores-the-signal",
    HasNoHandler = "has-no-handler",
    LeavesItsSocket = "leaves-its-socket",
    Spins = "spins",
    LeaksMemory = "leaks-memory",
}
