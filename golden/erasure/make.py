"""Makes fragments.json with pyeclib: run it with a Python that has pyeclib 1.8."""
import base64
import json
import os

from pyeclib.ec_iface import ECDriver

SEGMENT = bytes((i * 37 + i // 13) % 256 for i in range(203))


def case(ec_type, k, m):
    driver = ECDriver(ec_type=ec_type, k=k, m=m)
    return {'ec_type': ec_type, 'k': k, 'm': m,
            'fragments': [base64.b64encode(f).decode() for f in driver.encode(SEGMENT)]}


cases = [case(ec_type, k, m)
         for ec_type in ('isa_l_rs_vand', 'isa_l_rs_cauchy', 'liberasurecode_rs_vand')
         for k, m in ((2, 1), (4, 2), (10, 4))]
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'fragments.json')
with open(path, 'w') as f:
    json.dump({'segment': base64.b64encode(SEGMENT).decode(), 'cases': cases}, f, indent=1)
    f.write('\n')
