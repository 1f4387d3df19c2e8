"""Runs pyeclib, the erasure codes of OpenStack Swift, for the upstream test.

One JSON request on standard input, one JSON answer on standard output; bytes are base64.

  {"ec_type": NAME, "k": K, "m": M, "segment": BYTES, "fragments": [BYTES, ...],
   "given": [INDEX, ...], "lost": INDEX, "sizes": [LENGTH, ...]}
      -> {"fragments": what it encodes the segment to,
          "decoded": what it makes of the fragments given,
          "rebuilt": the fragment lost, made of those given,
          "valid": whether it takes each fragment for a good one,
          "sizes": the size of a fragment of a segment of each length}
"""
import base64
import json
import sys

from pyeclib.ec_iface import ECDriver


def main():
    request = json.load(sys.stdin)
    driver = ECDriver(ec_type=request['ec_type'], k=request['k'], m=request['m'])
    fragments = [base64.b64decode(f) for f in request['fragments']]
    given = [fragments[i] for i in request['given']]
    rebuilt, = driver.reconstruct(given, [request['lost']])
    def text(value):
        return base64.b64encode(value).decode()
    json.dump({
        'fragments': [text(f) for f in driver.encode(base64.b64decode(request['segment']))],
        'decoded': text(driver.decode(given)),
        'rebuilt': text(rebuilt),
        'valid': [driver.get_metadata(f, 1)['index'] for f in fragments],
        'sizes': [driver.get_segment_info(n, n)['fragment_size'] for n in request['sizes']],
    }, sys.stdout)


main()
