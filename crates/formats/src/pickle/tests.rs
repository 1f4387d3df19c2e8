//! Tests with pickles that Python wrote, with our own, and with random bytes.

use proptest::prelude::*;

use super::*;

/// `pickle.dumps(v, protocol)` of one value by Python 3.12, protocols 0 to 5, with
/// `v = {'name': '/a/c/o\u00e9', 'n': [1, -5, 70000, 2**40, -2**40, True, None, 1.5],
///       't': (1, 2, 3, 'x'), b'k': b'\x00\xff\n', b'': b'', 's': {3}, 'd': {}}`.
const PYTHON: [&str; 6] = [
    "286470300a566e616d650a70310a562f612f632f6fe90a70320a73566e0a70330a286c70340a49310a61\
     492d350a614937303030300a614c313039393531313632373737364c0a614c2d31303939353131363237\
     3737364c0a614930310a614e6146312e350a617356740a70350a2849310a49320a49330a56780a70360a\
     7470370a73635f636f646563730a656e636f64650a70380a28566b0a70390a566c6174696e310a703130\
     0a747031310a527031320a67380a28565c7530303030ff5c75303030610a7031330a6731300a74703134\
     0a527031350a73635f5f6275696c74696e5f5f0a62797465730a7031360a2874527031370a6731370a73\
     56730a7031380a635f5f6275696c74696e5f5f0a7365740a7031390a28286c7032300a49330a61747032\
     310a527032320a7356640a7032330a28647032340a732e",
    "7d71002858040000006e616d65710158080000002f612f632f6fc3a9710258010000006e71035d710428\
     4b014afbffffff4a701101004c313039393531313632373737364c0a4c2d313039393531313632373737\
     364c0a4930310a4e473ff8000000000000655801000000747105284b014b024b03580100000078710674\
     7107635f636f646563730a656e636f64650a71082858010000006b710958060000006c6174696e31710a\
     74710b52710c680828580400000000c3bf0a710d680a74710e52710f635f5f6275696c74696e5f5f0a62\
     797465730a71102952711168115801000000737112635f5f6275696c74696e5f5f0a7365740a7113285d\
     71144b036174711552711658010000006471177d7118752e",
    "80027d71002858040000006e616d65710158080000002f612f632f6fc3a9710258010000006e71035d71\
     04284b014afbffffff4a701101008a060000000000018a060000000000ff884e473ff800000000000065\
     5801000000747105284b014b024b035801000000787106747107635f636f646563730a656e636f64650a\
     710858010000006b710958060000006c6174696e31710a86710b52710c6808580400000000c3bf0a710d\
     680a86710e52710f635f5f6275696c74696e5f5f0a62797465730a711029527111681158010000007371\
     12635f5f6275696c74696e5f5f0a7365740a71135d71144b036185711552711658010000006471177d71\
     18752e",
    "80037d71002858040000006e616d65710158080000002f612f632f6fc3a9710258010000006e71035d71\
     04284b014afbffffff4a701101008a060000000000018a060000000000ff884e473ff800000000000065\
     5801000000747105284b014b024b03580100000078710674710743016b7108430300ff0a71094300710a\
     680a580100000073710b636275696c74696e730a7365740a710c5d710d4b036185710e52710f58010000\
     006471107d7111752e",
    "80049576000000000000007d94288c046e616d65948c082f612f632f6fc3a9948c016e945d94284b014a\
     fbffffff4a701101008a060000000000018a060000000000ff884e473ff8000000000000658c01749428\
     4b014b024b038c017894749443016b94430300ff0a94430094680a8c0173948f94284b03908c0164947d\
     94752e",
    "80059576000000000000007d94288c046e616d65948c082f612f632f6fc3a9948c016e945d94284b014a\
     fbffffff4a701101008a060000000000018a060000000000ff884e473ff8000000000000658c01749428\
     4b014b024b038c017894749443016b94430300ff0a94430094680a8c0173948f94284b03908c0164947d\
     94752e",
];

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2)
        .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex"))
        .collect()
}

fn sample() -> Value {
    let int = Value::Int;
    Value::Dict(vec![
        (Value::str("name"), Value::str("/a/c/o\u{e9}")),
        (
            Value::str("n"),
            Value::List(vec![
                int(1),
                int(-5),
                int(70000),
                int(1 << 40),
                int(-(1 << 40)),
                Value::Bool(true),
                Value::None,
                Value::Float(1.5),
            ]),
        ),
        (
            Value::str("t"),
            Value::Tuple(vec![int(1), int(2), int(3), Value::str("x")]),
        ),
        (Value::bytes(*b"k"), Value::bytes(*b"\0\xff\n")),
        (Value::bytes(*b""), Value::bytes(*b"")),
        (Value::str("s"), Value::Set(vec![int(3)])),
        (Value::str("d"), Value::Dict(vec![])),
    ])
}

#[test]
fn what_python_wrote() {
    for (protocol, hex) in PYTHON.iter().enumerate() {
        assert_eq!(loads(&unhex(hex)), Ok(sample()), "protocol {protocol}");
    }
}

#[test]
fn ours_round_trip() {
    assert_eq!(loads(&dumps(&sample())), Ok(sample()));
}

#[test]
fn strings_of_python_2_are_bytes() {
    let pickle = b"\x80\x02}q\x01(U\x04nameq\x02U\x06/a/c/oq\x03S'it\\'s'\nT\x01\0\0\0yu.";
    let value = loads(pickle).expect("a pickle");
    assert_eq!(value.get("name"), Some(&Value::bytes(*b"/a/c/o")));
    assert_eq!(value.get("it's").and_then(Value::as_str), Some("y"));
}

#[test]
fn swift_header_dictionaries() {
    let pickle = b"\x80\x02}q\x00X\x07\x00\x00\x00headersq\x01cswift.common.header_key_dict\n\
        HeaderKeyDict\nq\x02)\x81q\x03X\x06\x00\x00\x00X-Sizeq\x04X\x01\x00\x00\x001q\x05ss.";
    let protocol_0 = b"(dp0\nVheaders\np1\nccopy_reg\n_reconstructor\np2\n\
        (cswift.common.header_key_dict\nHeaderKeyDict\np3\nc__builtin__\ndict\np4\n\
        (dp5\nVX-Size\np6\nV1\np7\nstp8\nRp9\ns.";
    for pickle in [&pickle[..], &protocol_0[..]] {
        let headers = loads(pickle).expect("a pickle");
        let headers = headers.get("headers").expect("headers");
        assert_eq!(headers.get("X-Size").and_then(Value::as_str), Some("1"));
    }
}

#[test]
fn code_is_refused() {
    assert_eq!(
        loads(b"cos\nsystem\n(S'true'\ntR."),
        Err(PickleError::Global {
            module: "os".into(),
            name: "system".into()
        })
    );
    assert_eq!(loads(b"i__main__\nx\n."), Err(PickleError::Opcode(b'i')));
    assert!(loads(b"\x80\x02c_codecs\nencode\n.").is_err());
    assert!(loads(b"c_codecs\nencode\n(Vx\nVutf-16\ntR.").is_err());
}

#[test]
fn hostile_shapes_are_refused() {
    assert_eq!(loads(b""), Err(PickleError::Truncated));
    assert!(loads(b".").is_err());
    assert!(loads(b"(.").is_err());
    assert!(loads(b"]q\x00h\x00a.").is_err(), "a list that holds itself");
    let deep = [vec![b']'; 1000], vec![b'a'; 999], vec![b'.']].concat();
    assert_eq!(loads(&deep), Err(PickleError::TooDeep));
    assert_eq!(loads(b"Nr\xff\xff\xff\xff."), Err(PickleError::TooLarge));
    // Each list contains the one before it sixteen times.
    let mut bomb = b"]q\x00".to_vec();
    for level in 0..40u8 {
        bomb.extend(b"](");
        for _ in 0..16 {
            bomb.extend([b'h', level]);
        }
        bomb.extend([b'e', b'q', level + 1]);
    }
    bomb.push(b'.');
    assert_eq!(loads(&bomb), Err(PickleError::TooLarge));
    // One long text, encoded repeatedly.
    let mut bomb = b"c_codecs\nencode\nq\x00X\x00\x00\x10\x00".to_vec();
    bomb.extend(std::iter::repeat_n(b'x', 1 << 20));
    bomb.extend(b"q\x01Vlatin1\nq\x02");
    for _ in 0..200 {
        bomb.extend(b"h\x00h\x01h\x02\x86R");
    }
    bomb.push(b'.');
    assert_eq!(loads(&bomb), Err(PickleError::TooLarge));
}

#[test]
fn a_key_set_twice_has_its_last_value() {
    let value = loads(b"}(VaK1K\x01VaK1K\x02u.");
    assert!(value.is_err(), "an odd number of items is malformed");
    let value = loads(b"}(Va\nK\x01Va\nK\x02u.").expect("a pickle");
    assert_eq!(value, Value::Dict(vec![(Value::str("a"), Value::Int(2))]));
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        (-1e300..1e300).prop_map(Value::Float),
        ".{0,12}".prop_map(Value::Str),
        proptest::collection::vec(any::<u8>(), 0..12).prop_map(Value::Bytes),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        let key = "[a-z]{1,6}";
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::Tuple),
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::List),
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::Set),
            proptest::collection::btree_map(key, inner, 0..5).prop_map(|map| Value::Dict(
                map.into_iter().map(|(k, v)| (Value::Str(k), v)).collect()
            )),
        ]
    })
}

proptest! {
    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = loads(&noise);
    }

    #[test]
    fn opcode_noise_never_panics(
        noise in proptest::collection::vec(
            proptest::sample::select(
                b"(.012NIJKMLFGSTUVX]laetdsu)}gpqhrjcR\n\x80\x81\x85\x86\x87\x88\x8a\x8b\x8c\x8f\
                  \x90\x91\x93\x94\x95\x00\x01\x02".to_vec()),
            0..200)
    ) {
        let _ = loads(&noise);
    }

    #[test]
    fn a_damaged_pickle_never_panics(at in 0usize..200, byte: u8) {
        let mut pickle = dumps(&sample());
        let at = at % pickle.len();
        pickle[at] = byte;
        let _ = loads(&pickle);
    }

    #[test]
    fn round_trip(value in values()) {
        prop_assert_eq!(loads(&dumps(&value)), Ok(value));
    }
}
