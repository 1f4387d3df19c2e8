"""junit_outcomes.py JUNIT: one line per test of a junit.xml, `passed|failed|skipped module.Class::name`.

A test that appears twice (a failure and an error in its teardown) counts as failed.
"""
import sys
import xml.etree.ElementTree as ET

outcomes = {}
for case in ET.parse(sys.argv[1]).getroot().iter('testcase'):
    name = '%s::%s' % (case.get('classname'), case.get('name'))
    tags = {child.tag for child in case}
    outcome = 'failed' if tags & {'failure', 'error'} else 'skipped' if 'skipped' in tags else 'passed'
    if outcomes.get(name) != 'failed':
        outcomes[name] = outcome
for name, outcome in outcomes.items():
    print(outcome, name)
