"""A connection into a container of this host by nsenter(1), which ansible-core has none for."""

import subprocess

from ansible.errors import AnsibleError
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
    name: nsenter
    short_description: runs commands in the namespaces of a process
    description: Runs commands in the namespaces of a process of this host.
    options:
      pid:
        description: the process
        required: true
        vars:
          - name: nsenter_pid
"""


class Connection(ConnectionBase):
    transport = "nsenter"
    has_pipelining = True

    def _connect(self):
        self._connected = True
        return self

    def _run(self, argv, data=None, stdout=subprocess.PIPE):
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
        enter = ["nsenter", "-t", str(self.get_option("pid")), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w"]
        p = subprocess.Popen(enter + argv, stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.PIPE, env=env)
        out, err = p.communicate(data)
        return p.returncode, out, err

    def exec_command(self, cmd, in_data=None, sudoable=True):
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        return self._run(["/bin/sh", "-c", cmd], in_data)

    def put_file(self, in_path, out_path):
        with open(in_path, "rb") as f:
            rc, _, err = self._run(["dd", "of=" + out_path, "status=none"], f.read())
        if rc != 0:
            raise AnsibleError("%s: %s" % (out_path, err))

    def fetch_file(self, in_path, out_path):
        rc, out, err = self._run(["cat", in_path])
        if rc != 0:
            raise AnsibleError("%s: %s" % (in_path, err))
        with open(out_path, "wb") as f:
            f.write(out)

    def close(self):
        self._connected = False
