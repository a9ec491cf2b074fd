"""Programs that import this one, and those that they start with
multiprocessing, cannot use the network: Python's own sockets refuse everything
but sockets of this machine.  psycopg's connection is libpq's, which is given a
folder."""
import socket
import sys


def refuse(event, args):
    if event == "socket.getaddrinfo" or (
            event in ("socket.connect", "socket.sendto") and
            args[0].family != socket.AF_UNIX):
        raise OSError("%s: this program works without the network" % event)


sys.addaudithook(refuse)
